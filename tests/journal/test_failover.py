"""A slot that standbys keep: the receiver goes on with one that was promoted."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.journal import Journal
from penstock.journal.receiver import Receiver
from penstock.journal.writer import JournalWriter
from penstock.pipeline.slot_recovery import recover_lost_slot
from penstock.postgres.preflight import preflight
from penstock.schema import Lsn
from penstock.stores import MemoryStore
from penstock.testing.postgres import EmbeddedPostgres, wait_for
from tests.journal.conftest import Running

STANDBY_SLOT = "standby"


def standby_of(primary: EmbeddedPostgres, root: Path) -> EmbeddedPostgres:
    """A hot standby that streams from `primary`; not started."""
    conninfo = primary.dsn(tcp=True)
    standby = EmbeddedPostgres(
        root,
        listen_tcp=True,
        settings={
            "primary_conninfo": conninfo,
            "primary_slot_name": STANDBY_SLOT,
            "hot_standby_feedback": "on",
        },
    )
    root.mkdir()
    subprocess.run(
        [
            *(str(primary.bin("pg_basebackup")), "-d", conninfo, "-D", str(standby.data)),
            *("-X", "stream", "-S", STANDBY_SLOT, "-c", "fast", "--no-sync"),
        ],
        check=True,
    )
    (standby.data / "standby.signal").touch()
    owner = primary.data.stat()
    for path in (standby.data, *standby.data.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    return standby


def config(
    root: Path,
    *servers: EmbeddedPostgres,
    failover: bool = True,
    session_attributes: str = "read-write",
) -> PipelineConfig:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    uri = f"postgresql://postgres@{hosts}/postgres?target_session_attrs={session_attributes}"
    return PipelineConfig(
        id="f",
        publication_name="pub",
        pg_connection=PgConnection(uri=uri),
        journal=JournalConfig(location=str(root / "journal")),
        failover=failover,
    )


def test_a_promoted_standby_is_followed(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "primary", listen_tcp=True) as primary:
        session = primary.connect()
        session.execute("SELECT pg_create_physical_replication_slot(%s, true)", [STANDBY_SLOT])
        session.execute("CREATE PUBLICATION pub FOR ALL TABLES")
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with standby_of(primary, tmp_path / "standby") as standby:
            settings = config(tmp_path, primary, standby)
            assert "synchronized_standby_slots" in [f.subject for f in preflight(settings)]
            session.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{STANDBY_SLOT}'")
            session.execute("SELECT pg_reload_conf()")

            running = Running(settings.model_copy(update={"failover": False}), session)
            running.start()
            running.stop()  # the slot is there now, and of the plain kind
            waits_for_a_promotion(config(tmp_path, standby, session_attributes="any"))
            running = Running(settings, session)
            running.start()
            try:
                running.execute("INSERT INTO t VALUES (1)")
                running.catch_up()
                with standby.connect() as there:

                    def kept() -> bool:
                        session.execute("SELECT pg_log_standby_snapshot()")
                        there.execute("SELECT pg_sync_replication_slots()")
                        query = "SELECT synced AND NOT temporary FROM pg_replication_slots"
                        return there.execute(query).fetchone() == (True,)

                    wait_for(kept)
                    primary.kill()
                    there.execute("SELECT pg_promote()")
                    there.execute("ALTER SYSTEM RESET synchronized_standby_slots")
                    there.execute("SELECT pg_reload_conf()")
                running.connection = standby.connect()
                running.execute("INSERT INTO t VALUES (2)")
                assert [c["after"]["id"] for c in running.changes("t")] == [1, 2]
            finally:
                running.stop()
            refuses_what_the_standby_lacked(running)


def waits_for_a_promotion(settings: PipelineConfig) -> None:
    """As if a name led to the standby already, which has no slot yet."""
    stop, reasons = threading.Event(), []

    def report(event: dict[str, Any]) -> None:
        reasons.append(event["reason"])
        stop.set()

    Receiver(settings, report).run(stop)
    assert "is a standby" in reasons[0]

    recreating = settings.model_copy(update={"invalidated_slot_behavior": "recreate"})
    journal = Journal(settings.journal_path)
    journal.refresh()
    with pytest.raises(PenstockError, match="is a standby") as caught:
        recover_lost_slot(recreating, MemoryStore(), journal)
    assert caught.value.kind.retryable
    assert not journal.empty


def refuses_what_the_standby_lacked(running: Running) -> None:
    """As if the old primary had sent us more than it had sent to the standby."""
    journal = JournalWriter(running.config.journal_path)
    journal.refresh()
    journal.append(Lsn(journal.end.value + 8))
    timeline = running.config.journal_path / "timeline.json"
    assert json.loads(timeline.read_text()) == {"timeline": 2}
    timeline.write_text('{"timeline": 1}')
    with pytest.raises(PenstockError, match=r"was promoted at .* lost there") as caught:
        Receiver(running.config).run(threading.Event())
    assert caught.value.kind is ErrorKind.SOURCE_SLOT


def test_an_older_server_cannot(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "server", version=16, listen_tcp=True) as server:
        with server.connect() as session:
            session.execute("CREATE TABLE t (id int PRIMARY KEY)")
            session.execute("CREATE PUBLICATION pub FOR ALL TABLES")
        findings = {f.subject: f for f in preflight(config(tmp_path, server))}
        assert "needs Postgres 17" in findings["failover"].problem
        with pytest.raises(PenstockError, match="needs Postgres 17 or later") as caught:
            Receiver(config(tmp_path, server)).run(threading.Event())
        assert caught.value.kind is ErrorKind.SOURCE_CONFIGURATION
