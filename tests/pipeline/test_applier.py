"""One table's way through a journal made by hand; the destination never reads the files."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from penstock.changes.batches import ChangeBatch, TableRows
from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.destinations.base import Destination, WriteResult, WriteStatus
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.manifest import Defect, SegmentRef
from penstock.pipeline.applier import Applier, Copied, ResyncWanted
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.status import Meter
from penstock.schema import Lsn, TableId, TableSchema
from penstock.states import FinishedCopy, Ready, VisibleXids
from penstock.stores import MemoryStore
from penstock.stores.base import (
    DestinationTableMetadata,
    MetadataStatus,
    Worker,
    schema_at_destination,
)
from tests.pipeline.journals import HandMadeJournal, table

NARROW = table(version=150)
WIDE = table(version=250, columns=("id", "v", "w"))
READY = Ready("c1")
COPY = FinishedCopy("c1", VisibleXids.parse("1000:1010:1005"), Lsn(220))


class Taking(Destination):
    """Notes the batches and answers as told."""

    name = "taking"

    def __init__(self) -> None:
        self.answer: WriteResult = WriteStatus.DURABLE
        self.action = SchemaChangeAction.ERROR
        self.at: Lsn | None = None
        self.batches: list[ChangeBatch] = []
        self.changes: list[SchemaChange] = []
        self.trouble: Exception | None = None
        self.flushes = 0

    def drop_table_for_copy(self, table: TableSchema, previous: TableSchema | None) -> None: ...

    def write_table_rows(self, table: TableSchema, rows: TableRows) -> WriteResult:
        raise NotImplementedError

    def write_events(self, batch: ChangeBatch) -> WriteResult:
        self.batches.append(batch)
        return self.answer

    def position(self, table: TableSchema, copy_id: str) -> Lsn | None:
        return self.at

    def change_schema(self, change: SchemaChange) -> SchemaChangeAction:
        self.changes.append(change)
        if self.trouble is not None:
            raise self.trouble
        return self.action

    def flush(self, table: TableSchema) -> None:
        self.flushes += 1


class Bench:
    """A journal, a store, a destination, and appliers over them."""

    def __init__(self, root: Path) -> None:
        self.journal = HandMadeJournal(root / "journal")
        self.store = MemoryStore()
        self.store.open("t")
        self.destination = Taking()
        self.config = PipelineConfig(
            id="t",
            publication_name="p",
            pg_connection=PgConnection(),
            journal=JournalConfig(location=str(root / "journal")),
        )

    def set_cursor(self, position: int) -> None:
        self.store.upsert_replication_progress(Worker.apply(NARROW.id), Lsn(position))

    @property
    def stored_cursor(self) -> Lsn | None:
        return self.store.get_replication_progress(Worker.apply(NARROW.id))

    def applier(self, copied: Copied = READY, schema: TableSchema = NARROW) -> Applier:
        spark: Any = None
        context = PipelineContext(
            self.config, self.store, self.journal.reader, self.destination, spark
        )
        applier = Applier(context, schema, copied, spark, Meter(), lambda: None)
        applier.open()
        return applier

    def applier_after_restart(self) -> Applier:
        """One that goes on from what the store says of the destination."""
        there = schema_at_destination(self.store, NARROW.id)
        assert there is not None
        return self.applier(schema=there)

    def ends(self) -> list[Lsn]:
        return [batch.end for batch in self.destination.batches]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.set_cursor(100)
    return bench


def test_the_cursor_moves_when_the_batch_is_durable(bench: Bench) -> None:
    bench.journal.flush(200, bench.journal.segment(NARROW, [1, 2]), schemas=(NARROW,))
    applier = bench.applier()
    assert applier.has_work
    applier.step()
    assert bench.stored_cursor == Lsn(200)
    assert not applier.has_work
    batch = bench.destination.batches[0]
    assert (batch.start, batch.end, batch.counts.inserts) == (Lsn(100), Lsn(200), 2)
    assert batch.id == "t/1/c1/0/C8"
    assert batch.begins_version


def test_a_batch_committed_before_a_crash_is_not_sent_again(bench: Bench) -> None:
    bench.journal.flush(200, bench.journal.segment(NARROW), schemas=(NARROW,))
    bench.journal.flush(300, bench.journal.segment(NARROW))
    bench.destination.at = Lsn(200)
    applier = bench.applier()
    assert bench.stored_cursor == Lsn(200)
    applier.step()
    assert [(b.start, b.end) for b in bench.destination.batches] == [(Lsn(200), Lsn(300))]


def test_a_destination_ahead_of_the_journal_means_the_journal_was_lost(bench: Bench) -> None:
    bench.destination.at = Lsn(5000)
    with pytest.raises(PenstockError, match="was lost or replaced") as caught:
        bench.applier()
    assert caught.value.kind is ErrorKind.JOURNAL
    assert not caught.value.kind.retryable


def test_a_journal_that_does_not_reach_back_asks_for_a_resync(bench: Bench) -> None:
    bench.journal.flush(200, bench.journal.segment(NARROW), schemas=(NARROW,))
    bench.journal.flush(300)
    bench.journal.reader.retire({NARROW.id: Lsn(200)})
    with pytest.raises(PenstockError, match="does not reach back to 0/64") as caught:
        bench.applier()
    assert "resync" in str(caught.value.hint)


def test_accepted_batches_are_flushed_when_the_table_is_idle(bench: Bench) -> None:
    bench.destination.answer = WriteStatus.ACCEPTED
    bench.journal.flush(200, bench.journal.segment(NARROW), schemas=(NARROW,))
    applier = bench.applier()
    applier.step()
    assert bench.stored_cursor == Lsn(100)
    assert applier.has_work
    applier.step()
    assert bench.destination.flushes == 1
    assert bench.stored_cursor == Lsn(200)
    assert not applier.has_work


def test_accepted_batches_are_flushed_before_there_are_too_many(bench: Bench) -> None:
    bench.destination.answer = WriteStatus.ACCEPTED
    applier = bench.applier()
    for number in range(1, 18):
        end = 100 + 100 * number
        schemas = (NARROW,) if number == 1 else ()
        bench.journal.flush(end, bench.journal.segment(NARROW), schemas=schemas)
        applier.step()
    assert bench.destination.flushes == 1
    assert bench.stored_cursor == Lsn(1700)


def test_the_cursor_waits_for_a_future(bench: Bench) -> None:
    future: Future[None] = Future()
    bench.destination.answer = future
    bench.journal.flush(200, bench.journal.segment(NARROW), schemas=(NARROW,))
    applier = bench.applier()
    applier.step()
    assert bench.stored_cursor == Lsn(100)
    assert not applier.has_work
    future.set_result(None)
    assert applier.has_work
    applier.step()
    assert bench.stored_cursor == Lsn(200)
    assert bench.destination.flushes == 0


def test_the_copys_transactions_are_left_out_up_to_the_barrier(bench: Bench) -> None:
    bench.journal.flush(200, bench.journal.segment(NARROW), schemas=(NARROW,))
    applier = bench.applier(COPY)
    applier.step()
    assert bench.destination.batches[0].visible == COPY.visible
    assert applier.passed_barrier() is None
    bench.journal.flush(300, bench.journal.segment(NARROW))
    applier.step()
    assert bench.destination.batches[1].visible == COPY.visible
    assert applier.passed_barrier() == Lsn(300)
    applier.past_barrier(Lsn(300))
    bench.journal.flush(400, bench.journal.segment(NARROW))
    applier.step()
    assert bench.destination.batches[2].visible is None


def test_a_table_without_changes_passes_the_barrier_with_the_journal(bench: Bench) -> None:
    applier = bench.applier(COPY)
    assert not applier.has_work
    bench.journal.flush(300)
    assert applier.has_work
    assert applier.passed_barrier() == Lsn(300)
    applier.past_barrier(Lsn(300))
    assert bench.stored_cursor == Lsn(300)
    assert not applier.has_work


def test_the_barrier_is_not_passed_while_accepted_batches_are_not_safe(bench: Bench) -> None:
    bench.destination.answer = WriteStatus.ACCEPTED
    bench.journal.flush(300, bench.journal.segment(NARROW), schemas=(NARROW,))
    applier = bench.applier(COPY)
    applier.step()
    assert applier.passed_barrier() is None
    applier.step()
    assert applier.passed_barrier() == Lsn(300)


def test_a_value_that_no_column_can_hold_stops_the_table(bench: Bench) -> None:
    defect = Defect("v", "id=7", "infinity" + "!" * 500, 1)
    segment = bench.journal.segment(NARROW, [2000], values=[None], defects=(defect,))
    bench.journal.flush(200, segment, schemas=(NARROW,))
    with pytest.raises(PenstockError) as caught:
        bench.applier().step()
    assert caught.value.kind is ErrorKind.DATA_UNREPRESENTABLE
    for part in ("public.t", "column v", "id=7", "infinity!"):
        assert part in caught.value.message
    assert len(caught.value.message) < 500
    assert bench.stored_cursor == Lsn(100)
    assert not bench.destination.batches


def test_a_value_that_was_mended_before_the_copy_stops_nothing(bench: Bench) -> None:
    defect = Defect("v", "id=7", "infinity", 1)
    segment = bench.journal.segment(NARROW, [990], values=[None], defects=(defect,))
    bench.journal.flush(200, segment, schemas=(NARROW,))
    bench.applier(COPY).step()
    assert bench.ends() == [Lsn(200)]


def test_null_is_taken_instead_but_never_as_a_key(bench: Bench) -> None:
    """Rows that NULL names would be taken for one."""
    bench.config = bench.config.model_copy(update={"on_unrepresentable": "null"})

    def segment(column: str) -> SegmentRef:
        defect = Defect(column, "id=7", "infinity", 1)
        return bench.journal.segment(NARROW, [2000], values=[None], defects=(defect,))

    bench.journal.flush(200, segment("v"), schemas=(NARROW,))
    applier = bench.applier()
    applier.step()
    assert bench.ends() == [Lsn(200)]
    assert applier.nulled == 1
    bench.journal.flush(300, segment("id"))
    with pytest.raises(PenstockError, match="column id") as caught:
        applier.step()
    assert caught.value.kind is ErrorKind.DATA_UNREPRESENTABLE
    assert "on_unrepresentable" not in (caught.value.hint or "")
    assert bench.ends() == [Lsn(200)]


def test_a_changed_table_that_the_destination_does_not_follow_is_an_error(bench: Bench) -> None:
    bench.journal.flush(200, bench.journal.segment(NARROW), schemas=(NARROW,))
    bench.journal.flush(300, bench.journal.segment(WIDE, [2000]), schemas=(WIDE,))
    applier = bench.applier()
    applier.step()
    with pytest.raises(PenstockError, match="added w") as caught:
        applier.step()
    assert caught.value.kind is ErrorKind.SOURCE_SCHEMA
    assert bench.stored_cursor == Lsn(200)
    assert bench.ends() == [Lsn(200)]


def test_a_changed_table_goes_on_when_the_destination_follows(bench: Bench) -> None:
    bench.destination.action = SchemaChangeAction.CONTINUE
    bench.destination.answer = WriteStatus.ACCEPTED
    bench.journal.flush(200, bench.journal.segment(NARROW), schemas=(NARROW,))
    bench.journal.flush(300, bench.journal.segment(WIDE, [2000]), schemas=(WIDE,))
    applier = bench.applier()
    applier.step()
    applier.step()
    assert bench.destination.changes == [SchemaChange(NARROW, WIDE)]
    assert bench.stored_cursor == Lsn(200), "what was accepted is safe before the shape changes"
    assert bench.destination.batches[1].table == WIDE
    metadata = bench.store.get_destination_table_metadata(NARROW.id)
    assert metadata is not None
    assert (metadata.snapshot_id, metadata.status) == (WIDE.version, MetadataStatus.APPLIED)
    assert bench.store.get_table_schema(NARROW.id, Lsn(9999)) == WIDE


def test_a_changed_table_is_copied_again_when_the_destination_wants_it(bench: Bench) -> None:
    bench.destination.action = SchemaChangeAction.RESYNC
    bench.journal.flush(300, bench.journal.segment(WIDE, [2000]), schemas=(WIDE,))
    with pytest.raises(ResyncWanted):
        bench.applier().step()


def test_a_shape_that_was_over_before_the_copy_is_passed_over(bench: Bench) -> None:
    """The copy has the new shape and the rows; the journal still has the old one's changes."""
    bench.journal.flush(200, bench.journal.segment(NARROW, [990, 1001]), schemas=(NARROW,))
    bench.journal.flush(300, bench.journal.segment(WIDE, [2000]), schemas=(WIDE,))
    applier = bench.applier(COPY, schema=WIDE)
    applier.step()
    assert not bench.destination.changes
    assert not bench.destination.batches
    assert bench.stored_cursor == Lsn(200)
    applier.step()
    assert bench.ends() == [Lsn(300)]


def test_a_failed_change_of_shape_is_asked_for_again(bench: Bench) -> None:
    bench.journal.flush(300, bench.journal.segment(WIDE, [2000]), schemas=(WIDE,))
    with pytest.raises(PenstockError):
        bench.applier().step()
    metadata = bench.store.get_destination_table_metadata(NARROW.id)
    assert metadata is not None
    assert metadata.status is MetadataStatus.APPLYING
    bench.destination.action = SchemaChangeAction.CONTINUE
    bench.applier().step()
    assert bench.destination.changes == [SchemaChange(NARROW, WIDE)] * 2


def copied_as(bench: Bench, schema: TableSchema) -> None:
    bench.store.store_table_schema(schema)
    metadata = DestinationTableMetadata(
        "public.t", schema.version, MetadataStatus.APPLIED, (True,) * len(schema.columns)
    )
    bench.store.store_destination_table_metadata(schema.id, metadata)


def test_a_change_that_the_catalog_shows_is_asked_for_until_it_is_applied(bench: Bench) -> None:
    copied_as(bench, NARROW)
    bench.destination.trouble = ConnectionError("the destination is away")
    for end in (300, 400, 500):
        bench.journal.flush(end)
        with pytest.raises(ConnectionError):
            bench.applier_after_restart().follow(WIDE)
        assert schema_at_destination(bench.store, NARROW.id) == NARROW
    bench.destination.trouble = None
    bench.destination.action = SchemaChangeAction.CONTINUE
    bench.journal.flush(600)
    bench.applier_after_restart().follow(WIDE)
    assert {change.old for change in bench.destination.changes} == {NARROW}
    applied = schema_at_destination(bench.store, NARROW.id)
    assert applied is not None
    assert (applied.version, applied.columns) == (Lsn(600), WIDE.columns)


def test_a_change_that_failed_comes_again_with_the_row_that_shows_it(bench: Bench) -> None:
    copied_as(bench, NARROW)
    bench.journal.flush(240)
    bench.destination.trouble = ConnectionError("the destination is away")
    with pytest.raises(ConnectionError):
        bench.applier_after_restart().follow(WIDE)
    bench.journal.flush(300, bench.journal.segment(WIDE, [2000]), schemas=(WIDE,))
    with pytest.raises(ConnectionError):
        bench.applier_after_restart().step()
    bench.destination.trouble = None
    bench.destination.action = SchemaChangeAction.CONTINUE
    bench.applier_after_restart().step()
    assert [change.old for change in bench.destination.changes] == [NARROW] * 3
    assert schema_at_destination(bench.store, NARROW.id) == WIDE


def test_versions_that_the_destination_has_left_behind_go_from_the_store(bench: Bench) -> None:
    copied_as(bench, NARROW)
    bench.journal.flush(300)
    bench.destination.action = SchemaChangeAction.CONTINUE
    applier = bench.applier_after_restart()
    wider = table(columns=("id", "v", "w", "x"))
    for shape in (WIDE, wider):
        applier.follow(shape)
        assert [each.columns for each in bench.store.get_table_schemas()] == [shape.columns]
    bench.destination.trouble = ConnectionError("the destination is away")
    with pytest.raises(ConnectionError):
        applier.follow(NARROW)
    assert bench.applier_after_restart().schema.columns == wider.columns


def test_two_changes_that_find_the_journal_at_one_place_are_two_versions(bench: Bench) -> None:
    copied_as(bench, NARROW)
    bench.journal.flush(300)
    bench.destination.action = SchemaChangeAction.CONTINUE
    applier = bench.applier_after_restart()
    applier.follow(WIDE)
    bench.destination.trouble = ConnectionError("the destination is away")
    with pytest.raises(ConnectionError):
        applier.follow(table(columns=("id", "v", "w", "x")))
    there = schema_at_destination(bench.store, NARROW.id)
    assert there is not None
    assert there.columns == WIDE.columns


def test_a_change_is_repeated_when_we_died_before_it_was_recorded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever that was: once the destination has it, or between the store's two records."""
    copied_as(bench, NARROW)
    bench.destination.action = SchemaChangeAction.CONTINUE
    bench.journal.flush(300)
    keep = bench.store.store_destination_table_metadata

    class Died(Exception): ...

    def at_failpoint(name: str) -> None:
        raise Died

    def before_applied(table_id: TableId, metadata: DestinationTableMetadata) -> None:
        if metadata.status is MetadataStatus.APPLIED:
            raise Died
        keep(table_id, metadata)

    with monkeypatch.context() as patch:
        patch.setattr("penstock.pipeline.applier.failpoint", at_failpoint)
        with pytest.raises(Died):
            bench.applier_after_restart().follow(WIDE)
    assert schema_at_destination(bench.store, NARROW.id) == NARROW
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "store_destination_table_metadata", before_applied)
        with pytest.raises(Died):
            bench.applier_after_restart().follow(WIDE)
    assert schema_at_destination(bench.store, NARROW.id) == NARROW
    bench.applier_after_restart().follow(WIDE)
    asked = SchemaChange(NARROW, dataclasses.replace(WIDE, version=Lsn(300)))
    assert bench.destination.changes == [asked] * 3
    metadata = bench.store.get_applied_destination_table_metadata(NARROW.id)
    assert metadata is not None
    assert metadata.snapshot_id == Lsn(300)
