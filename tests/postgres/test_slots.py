"""Looking at slots and dropping them."""

from __future__ import annotations

from contextlib import closing

import pytest
from psycopg import pq

from penstock.config import PgConnection
from penstock.errors import PenstockError
from penstock.postgres.connection import Session, connect, current_wal_lsn
from penstock.postgres.slots import SlotInfo, drop_slot, slot_info, waited_for
from penstock.testing.postgres import wait_for


def make_slot(session: Session, name: str = "penstock_slots_test") -> str:
    session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    return name


def look(session: Session, name: str) -> SlotInfo:
    slot = slot_info(session, name)
    assert slot is not None
    return slot


def test_a_slot_that_is_not_there(session: Session) -> None:
    assert slot_info(session, "nothing") is None
    assert drop_slot(session, "nothing") is False


def test_a_slot_at_rest(session: Session) -> None:
    before = current_wal_lsn(session)
    slot = look(session, make_slot(session))
    assert (slot.plugin, slot.database) == ("pgoutput", session.info.dbname)
    assert (slot.active, slot.active_pid) == (False, None)
    assert slot.confirmed_flush_lsn is not None
    assert slot.confirmed_flush_lsn >= before
    assert slot.restart_lsn is not None
    assert slot.wal_status == "reserved"
    assert not slot.lost
    assert drop_slot(session, slot.name) is True
    assert slot_info(session, slot.name) is None


def test_a_slot_in_use(session: Session, source: PgConnection) -> None:
    name = make_slot(session)
    with closing(connect(source, "test", replication=True)) as stream:
        begun = stream.pgconn.exec_(
            f"START_REPLICATION SLOT {name} LOGICAL 0/0"
            " (proto_version '1', publication_names 'none')".encode()
        )
        assert begun.status == pq.ExecStatus.COPY_BOTH
        slot = look(session, name)
        assert slot.active
        assert slot.active_pid == stream.info.backend_pid
        assert not slot.being_made
        with pytest.raises(PenstockError, match=name):
            drop_slot(session, name)


def test_a_slot_that_is_being_made(session: Session, source: PgConnection) -> None:
    name = "penstock_slots_test"
    assert waited_for(session, name) == []
    with (
        closing(connect(source, "test", replication=True)) as stream,
        closing(connect(source, "test", autocommit=False)) as writer,
    ):
        writer.execute("CREATE TABLE public.things (id int)")
        stream.pgconn.send_query(f"CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput".encode())
        stream.pgconn.flush()
        wait_for(lambda: waited_for(session, name) == [writer.info.backend_pid])
        slot = look(session, name)
        assert slot.being_made
        assert not slot.lost
        assert slot.active_pid == stream.info.backend_pid
        writer.commit()
        wait_for(lambda: not look(session, name).being_made)
        assert look(session, name).confirmed_flush_lsn is not None
        assert waited_for(session, name) == []
    wait_for(lambda: not look(session, name).active)
    drop_slot(session, name)


def test_a_physical_slot(session: Session) -> None:
    session.execute("SELECT pg_create_physical_replication_slot('physical_slot')")
    try:
        slot = look(session, "physical_slot")
        assert (slot.plugin, slot.database) == (None, None)
    finally:
        drop_slot(session, "physical_slot")


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        ({"wal_status": "lost"}, "wal_removed"),
        ({"wal_status": "reserved", "invalidation_reason": "idle_timeout"}, "idle_timeout"),
        ({"wal_status": "reserved", "conflicting": True}, "conflict"),
    ],
)
def test_a_lost_slot_is_known_by_what_its_version_tells(
    invalid: dict[str, object], reason: str
) -> None:
    row = dict.fromkeys(("plugin", "database", "active_pid", "restart_lsn", "safe_wal_size"))
    row |= {"slot_name": "s", "active": False, "confirmed_flush_lsn": "0/10", **invalid}
    slot = SlotInfo._from_row(row)
    assert slot.lost
    assert slot.invalidation_reason == reason
