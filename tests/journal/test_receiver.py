"""The receiver against a real Postgres: every kind of change, and what it survives."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.config import MIB, BatchConfig, JournalConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal import flush, writer
from penstock.journal.flush import FlushBuilder
from penstock.journal.memory import machine_memory
from penstock.journal.receiver import Receiver
from penstock.journal.writer import JournalWriter
from penstock.schema import Lsn
from penstock.testing.postgres import wait_for
from tests.campaigns.replay import journaled_changes

WIDE = "(SELECT string_agg(md5((i * {0})::text), '') FROM generate_series(1, 400) i)"


def test_inserts_updates_and_deletes_arrive_in_order(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    running.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    running.execute("UPDATE t SET v = 'b' WHERE id = 2")
    running.execute("DELETE FROM t WHERE id = 1")
    changes = running.changes("t")
    assert [(c["op"], c["before"], c["after"]) for c in changes] == [
        ("i", None, {"id": 1, "v": "a"}),
        ("i", None, {"id": 2, "v": None}),
        ("u", None, {"id": 2, "v": "b"}),
        ("d", {"id": 1}, None),
    ]
    assert [c["tx_ordinal"] for c in changes] == [0, 1, 0, 0]


def test_a_key_change_carries_the_old_key(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (a int, v text, b int, PRIMARY KEY (b, a))")
    running.execute("INSERT INTO t VALUES (1, 'x', 2)")
    running.execute("UPDATE t SET a = 5")
    change = running.changes("t")[-1]
    assert change["before"] == {"a": 1, "b": 2}
    assert change["after"] == {"a": 5, "v": "x", "b": 2}


def test_full_identity_sends_whole_old_rows_and_fills_in_toast(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v int, wide text)")
    running.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    running.execute("ALTER TABLE t ALTER wide SET STORAGE EXTERNAL")
    running.execute(f"INSERT INTO t SELECT 1, 1, {WIDE.format(7)}")
    running.execute("UPDATE t SET v = 2")
    insert, update = running.changes("t")
    assert update["before"] == insert["after"]
    assert update["after"] == insert["after"] | {"v": 2}
    assert not update["unchanged"]


def test_unchanged_toast_is_named_and_carried_by_a_replay(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v int, wide text)")
    running.execute("ALTER TABLE t ALTER wide SET STORAGE EXTERNAL")
    running.execute(f"INSERT INTO t SELECT 1, 1, {WIDE.format(7)}")
    running.execute("UPDATE t SET v = 2")
    running.execute("UPDATE t SET id = 9")
    changes = running.changes("t")
    assert [c["unchanged"] or [] for c in changes] == [[], ["wide"], ["wide"]]
    assert changes[-1]["after"]["wide"] is None
    running.assert_replay_equals_source("t")


def test_truncate_reaches_every_table_at_its_place(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE a (id int PRIMARY KEY)")
    running.execute("CREATE TABLE b (id int PRIMARY KEY)")
    with running.connection.transaction():
        running.execute("INSERT INTO a VALUES (1)")
        running.execute("INSERT INTO b VALUES (1)")
        running.execute("TRUNCATE a, b")
        running.execute("INSERT INTO b VALUES (2)")
        (xid,) = running.connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert [c["op"] for c in running.changes("a")] == ["i", "t"]
    assert [c["op"] for c in running.changes("b")] == ["i", "t", "i"]
    ordinals = [c["tx_ordinal"] for name in "ab" for c in running.changes(name)]
    assert sorted(ordinals) == list(range(5))
    journal = running.journal
    for name in "ab":
        assert journal.emptied_or_rewrote(running.schema(journal, name).id, int(xid))
    assert not journal.emptied_or_rewrote(running.schema(journal, "marker").id, int(xid))


def test_many_tables_truncated_at_once_find_room_in_the_index(receiver: Any) -> None:
    running = receiver()
    names = [f"t{i}" for i in range(60)]
    for name in names:
        running.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        running.execute(f"INSERT INTO {name} VALUES (1)")
    running.catch_up()
    with running.connection.transaction():
        running.execute(f"TRUNCATE {', '.join(names)}")
        for name in names:
            running.execute(f"INSERT INTO {name} VALUES (2)")
    journal = running.catch_up()
    for name in names:
        changes = journaled_changes(journal, running.schema(journal, name).id)
        assert [c["op"] for c in changes] == ["i", "t", "i"]


def test_rolled_back_work_never_appears(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with running.connection.transaction(force_rollback=True):
        running.execute("INSERT INTO t VALUES (1)")
    with running.connection.transaction():
        running.execute("INSERT INTO t VALUES (2)")
        with running.connection.transaction(force_rollback=True):
            running.execute("INSERT INTO t VALUES (3)")
    assert [c["after"]["id"] for c in running.changes("t")] == [2]


def test_a_table_that_changes_shape_in_a_transaction_gets_a_new_version(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    with running.connection.transaction():
        running.execute("INSERT INTO t VALUES (1, 10)")
        running.execute("ALTER TABLE t ADD COLUMN w text")
        running.execute("INSERT INTO t VALUES (2, 20, 'x')")
        running.execute("ALTER TABLE t DROP COLUMN v")
        running.execute("INSERT INTO t VALUES (3, 'y')")
    journal = running.catch_up()
    table = running.schema(journal, "t").id
    segments = [s for flush in journal.pending(table, Lsn(0)) for s in flush.segments]
    shapes = {
        tuple(c.name for c in journal.schema(table, s.schema_version).columns) for s in segments
    }
    assert shapes == {("id", "v"), ("id", "v", "w"), ("id", "w")}
    assert [c["after"] for c in running.changes("t")] == [
        {"id": 1, "v": 10},
        {"id": 2, "v": 20, "w": "x"},
        {"id": 3, "w": "y"},
    ]


def test_statistics_describe_the_segments(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id bigint PRIMARY KEY, v int)")
    with running.connection.transaction():
        running.execute("INSERT INTO t SELECT g, g FROM generate_series(-5, 100) g")
        running.execute("UPDATE t SET id = 500 WHERE id = 100")
        running.execute("DELETE FROM t WHERE id < 0")
    journal = running.catch_up()
    segment = journal.pending(running.schema(journal, "t").id, Lsn(0))[0].segments[0]
    assert (segment.rows, segment.key_min, segment.key_max) == (112, -5, 500)
    assert (segment.counts.inserts, segment.counts.updates, segment.counts.deletes) == (106, 1, 5)
    assert segment.key_changes == 1


def test_a_value_that_does_not_fit_is_a_defect_of_its_segment(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY, day date)")
    running.execute("INSERT INTO t VALUES (7, 'infinity'), (8, '2024-02-29')")
    journal = running.catch_up()
    segment = journal.pending(running.schema(journal, "t").id, Lsn(0))[0].segments[0]
    (defect,) = segment.defects
    assert (defect.column, defect.row, defect.value, defect.count) == ("day", "id=7", "infinity", 1)


def test_a_transaction_larger_than_memory_is_written_in_pieces(receiver: Any) -> None:
    running = receiver(batch=BatchConfig(max_bytes=200_000))
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    before = len(list((running.config.journal_path / "manifests").iterdir()))
    with running.connection.transaction():
        running.execute(
            "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 600000) g"
        )
    journal = running.catch_up()
    flushes = journal.pending(running.schema(journal, "t").id, Lsn(0))
    assert len(flushes) == 1, "visible at once, at its commit"
    assert len(flushes[0].segments) > 2
    assert sum(segment.rows for segment in flushes[0].segments) == 600_000
    assert journal.last_manifest is not None
    assert journal.last_manifest.number > before


def test_a_row_larger_than_the_memory_budget_passes(receiver: Any) -> None:
    budget = BatchConfig(memory_budget_ratio=60 * MIB / machine_memory())
    running = receiver(batch=budget)
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    running.execute("INSERT INTO t SELECT g, repeat('x', 64000000) FROM generate_series(1, 2) g")
    running.execute("INSERT INTO t VALUES (3, 'small')")
    journal = running.catch_up()
    table = running.schema(journal, "t").id
    flushes = journal.pending(table, Lsn(0))
    assert sum(segment.rows for flush in flushes for segment in flush.segments) == 3
    assert any(event["event"] == "paused" for event in running.events)


def test_the_end_of_a_flood_is_not_kept_waiting(
    receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is flushed like a trickle, long before `max_fill_ms`: nothing more comes."""
    monkeypatch.setattr("penstock.journal.scribe._TRICKLE_SHARE", 0.001)
    running = receiver(batch=BatchConfig(max_fill_ms=600_000))
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    running.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g")
    everything = running.now()
    wait_for(lambda: running.journal.end >= everything)


def test_a_restart_goes_on_where_the_journal_ends(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running.execute("INSERT INTO t VALUES (1)")
    running.catch_up()
    running.stop()
    running.execute("INSERT INTO t VALUES (2)")
    running.start()
    running.execute("INSERT INTO t VALUES (3)")
    assert [c["after"]["id"] for c in running.changes("t")] == [1, 2, 3]


def test_what_is_acknowledged_is_in_the_journal(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    end = running.catch_up().end

    def confirmed() -> Lsn:
        row = running.connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            [running.config.slot_name],
        ).fetchone()
        return Lsn.parse(row[0])

    wait_for(lambda: confirmed() >= end)
    assert confirmed() <= running.journal.end


def test_a_lost_connection_is_replaced(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running.execute("INSERT INTO t VALUES (1)")
    running.catch_up()
    wait_for(lambda: any(e["event"] == "streaming" for e in running.events))
    running.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        f" WHERE slot_name = '{running.config.slot_name}'"
    )
    running.execute("INSERT INTO t VALUES (2)")
    assert [c["after"]["id"] for c in running.changes("t")] == [1, 2]
    assert any(event["event"] == "reconnecting" for event in running.events)


def test_a_second_receiver_is_fenced_out_by_the_manifest_number(receiver: Any) -> None:
    from penstock.journal.writer import JournalWriter

    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    intruder = JournalWriter(running.config.journal_path)
    intruder.refresh()
    running.execute("INSERT INTO t VALUES (1)")
    running.catch_up()
    with pytest.raises(PenstockError, match="written by somebody else"):
        intruder.append(Lsn(intruder.end.value + 8))


def test_a_slot_ahead_of_the_journal_is_an_error_not_a_gap(receiver: Any) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running.catch_up()
    running.stop()
    running.execute("INSERT INTO t VALUES (1)")
    running.execute(
        f"SELECT pg_replication_slot_advance('{running.config.slot_name}', pg_current_wal_lsn())"
    )
    with pytest.raises(PenstockError, match="lost or rolled back") as caught:
        Receiver(running.config).run(threading.Event())
    assert caught.value.kind is ErrorKind.SOURCE_SLOT


def test_a_slot_without_its_journal_is_an_error(receiver: Any, tmp_path: Path) -> None:
    running = receiver()
    running.stop()
    elsewhere = running.config.model_copy(
        update={"journal": JournalConfig(location=str(tmp_path / "elsewhere"))}
    )
    with pytest.raises(PenstockError, match="is empty"):
        Receiver(elsewhere).run(threading.Event())


def test_a_slot_created_before_a_crash_is_adopted(receiver: Any, database: Any) -> None:
    """The crash between creating the slot and the first manifest."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    running = receiver()
    running.stop()
    (running.config.journal_path / "manifests" / "0000000001.json").unlink()
    for path in (running.config.journal_path / "manifests").iterdir():
        path.unlink()
    running.execute("INSERT INTO t VALUES (1)")
    running.start()
    assert [c["after"]["id"] for c in running.changes("t")] == [1]


def test_a_full_journal_pauses_receiving_and_resumes(
    receiver: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = receiver(
        journal=JournalConfig(location=str(tmp_path / "journal"), max_bytes=100_000),
        batch=BatchConfig(max_bytes=50_000),
    )
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for start in range(0, 20_000, 1000):
        running.execute(
            f"INSERT INTO t SELECT g, md5(g::text) FROM generate_series({start}, {start + 999}) g"
        )
    wait_for(lambda: any(e["event"] == "paused" for e in running.events))
    told = next(event for event in running.events if event["event"] == "paused")
    assert "journal.max_bytes" in told["reason"]
    assert "receiving paused" in caplog.messages
    running.execute("INSERT INTO t VALUES (-1, 'late')")
    journal = running.journal
    table = running.schema(journal, "t").id

    def emptied() -> bool:
        journal.refresh()
        journal.retire({table: journal.end})
        return any(
            flush.segments and flush.segments[0].key_min == -1
            for flush in journal.pending(table, Lsn(0))
        ) or (running.events[-1]["event"] == "resumed" and journal.end >= running.now())

    wait_for(emptied)


def test_what_an_earlier_receiver_has_named_is_on_disk_before_it_counts(
    receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed between naming a manifest and waiting for the disk."""
    running = receiver()
    running.catch_up()
    running.stop()
    running.events.clear()
    synced: list[Path] = []

    def note(path: Path) -> None:
        if not running.events:  # it does not stream yet
            synced.append(path)

    monkeypatch.setattr(writer, "sync", note)
    running.start()
    running.catch_up()
    assert synced == [running.journal.manifests_directory, running.journal.segments_directory]


@pytest.mark.parametrize(
    ("module", "name"), [(flush, "write_segment"), (writer, "create_exclusively")]
)
def test_a_full_disk_is_waited_for(
    receiver: Any, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    running = receiver(batch=BatchConfig(max_bytes=50_000))
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    running.catch_up()
    refused: list[Path] = []

    def full(path: Path, *arguments: Any) -> Any:
        if len(refused) < 2:
            refused.append(path)
            half = path if module is flush else path.with_name(f".{path.name}.tmp")
            half.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, *arguments)

    written = getattr(module, name)
    monkeypatch.setattr(module, name, full)
    running.execute("INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 5000) g")
    running.assert_replay_equals_source("t")
    assert len(refused) == 2
    reasons = [e["reason"] for e in running.events if e["event"] == "reconnecting"]
    assert len(reasons) == 2
    assert all("No space left" in r and "journal.max_bytes" in r for r in reasons)
    running.stop()
    named = {s.path for m in running.journal._manifests for s in m.segments}
    root = running.config.journal_path
    assert {str(path.relative_to(root)) for path in root.glob("segments/*/*")} == named
    assert not list(root.glob("manifests/.*"))


def test_an_idle_receiver_does_not_measure_its_journal_again_and_again(
    receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.journal.scribe._IDLE_FLUSH_S", 0.01)
    monkeypatch.setattr("penstock.journal.scribe._USAGE_CHECK_S", 0.01)
    looks: list[int] = []
    measured = JournalWriter.disk_usage

    def disk_usage(journal: JournalWriter) -> int:
        looks.append(measured(journal))
        return looks[-1]

    monkeypatch.setattr(JournalWriter, "disk_usage", disk_usage)
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running.execute("INSERT INTO t VALUES (1)")
    running.catch_up()
    wait_for(lambda: looks and looks[-1] > 0)
    before = len(looks)
    for _ in range(8):
        running.execute("SELECT pg_logical_emit_message(true, 'nothing', 'of ours')")
        target = running.now()
        wait_for(lambda target=target: running.journal.end >= target)
    assert len(looks) <= before + 2  # the flush of `catch_up` may have been under way


def test_the_slot_moves_while_only_unpublished_tables_change(
    receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.journal.scribe._IDLE_FLUSH_S", 0.1)
    running = receiver()
    running.execute("CREATE UNLOGGED TABLE u (id int)")
    start = running.journal.end
    running.execute("CREATE TABLE other (id int)")
    running.execute("DROP PUBLICATION pub")
    running.execute("CREATE PUBLICATION pub")
    running.execute("INSERT INTO other SELECT generate_series(1, 1000)")
    target = running.now()
    wait_for(lambda: running.journal.end >= target)
    assert running.journal.end > start


def test_the_server_hears_from_us_although_the_disk_is_slow(
    receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scribe is stuck until the server has heard from us several times."""
    monkeypatch.setattr("penstock.journal.receiver.sender_timeout", lambda _: 0.3)
    stuck, freed = threading.Event(), threading.Event()
    original = FlushBuilder.flush

    def slow(self: FlushBuilder, schemas: Any) -> Lsn:
        stuck.set()
        freed.wait()
        return original(self, schemas)

    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    monkeypatch.setattr(FlushBuilder, "flush", slow)
    replies = set()

    def heard() -> bool:
        replies.update(
            running.connection.execute(
                "SELECT reply_time FROM pg_stat_replication JOIN pg_replication_slots"
                " ON pid = active_pid WHERE slot_name = %s",
                [running.config.slot_name],
            ).fetchall()
        )
        return len(replies) > 3

    try:
        running.execute("INSERT INTO t VALUES (1)")
        wait_for(stuck.is_set)
        wait_for(heard)
    finally:
        freed.set()
    assert [c["after"]["id"] for c in running.changes("t")] == [1]
    assert not any(e["event"] == "reconnecting" for e in running.events)
