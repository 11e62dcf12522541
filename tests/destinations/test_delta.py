"""DeltaDestination: the contract, and what is Delta's own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.destinations import DeltaDestination
from penstock.destinations.base import Destination, DestinationContext
from penstock.destinations.delta import compaction
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.errors import ErrorKind, PenstockError
from penstock.schema import (
    STRING,
    ColumnSchema,
    DdlNote,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)
from penstock.stores.memory import MemoryStore
from penstock.testing.destination_contract import DestinationContract
from penstock.testing.sample_tables import EXTREME, LINES, NOTES, TYPES, TYPICAL, line, note
from penstock.testing.segments import Change, delete, insert, joined, update
from penstock.testing.stage import Stage

MakeStage = Callable[[TableSchema], Stage]


class TestDeltaDestination(DestinationContract):
    @pytest.fixture(autouse=True)
    def _session(self, spark: Any) -> None:
        self._spark = spark

    def make_destination(self, tmp_path: Path) -> Destination:
        return DeltaDestination(tmp_path / "lake")

    def read_rows(self, destination: Destination, table: TableSchema) -> list[dict[str, Any]]:
        from penstock.changes.rows import iterate_rows

        assert isinstance(destination, DeltaDestination)
        frame = self._spark.read.format("delta").load(destination.path(table.name))
        return [dict(row) for row in iterate_rows(table, frame.toArrow().to_batches())]

    def path(self, stage: Stage) -> Path:
        assert isinstance(stage.destination, DeltaDestination)
        return Path(stage.destination.path(stage.table.name))

    def history(self, stage: Stage) -> list[Any]:
        """A table's commits, newest first."""
        return list(self._spark.sql(f"DESCRIBE HISTORY delta.`{self.path(stage)}`").collect())

    def detail(self, stage: Stage) -> Any:
        return self._spark.sql(f"DESCRIBE DETAIL delta.`{self.path(stage)}`").head()

    # Copies.

    def test_copied_files_are_taken_over_with_their_statistics(
        self, stage: MakeStage, tmp_path: Path
    ) -> None:
        notes = stage(NOTES)
        copied = notes.script.copy([note(1, "a"), note(2), note(3, "c"), note(4)], files=2)
        inodes = {Path(file).stat().st_ino for file in copied.files}
        notes.destination.write_table_rows(NOTES, copied)
        assert {file.stat().st_ino for file in self.path(notes).glob("*.parquet")} == inodes
        assert len(notes.rows) == 4
        detail = self.detail(notes)
        assert detail["numFiles"] == 2
        assert detail["properties"]["delta.enableDeletionVectors"] == "true"
        log = self.path(notes) / "_delta_log" / f"{0:020}.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        added = [action["add"] for action in actions if "add" in action]
        statistics = [json.loads(add["stats"]) for add in added]
        assert [(s["minValues"]["id"], s["maxValues"]["id"]) for s in statistics] == [
            (1, 3),
            (2, 4),
        ]
        assert [s["nullCount"]["note"] for s in statistics] == [0, 2]

    def test_statistics_of_a_taken_over_file_prune_as_delta_s_own_do(
        self, stage: MakeStage, tmp_path: Path
    ) -> None:
        """Each value of a column that has bounds is found again by looking for it."""
        types = stage(TYPES)
        types.copy([{"id": 1, **TYPICAL}, {"id": 2, **EXTREME}], files=2)
        path = self.path(types)
        frame = self._spark.read.format("delta").load(str(path))
        log = (path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
        added = [json.loads(line)["add"] for line in log if "add" in json.loads(line)]
        bounded = {name for add in added for name in json.loads(add["stats"])["minValues"]}
        assert len(bounded) >= 5
        rows = frame.select(*[F.col(name).cast("string").alias(name) for name in bounded]).collect()
        for name in sorted(bounded):
            values = {row[name] for row in rows if row[name] is not None}
            literals = [F.lit(value).cast(frame.schema[name].dataType) for value in values]
            found = frame.where(F.col(name).isin(literals)).select(name).distinct()
            assert found.count() == len(values), name

    def test_a_batch_without_an_effect_is_recorded_with_its_position(
        self, stage: MakeStage
    ) -> None:
        notes = stage(NOTES)
        notes.copy([])
        notes.apply([delete({"id": 1})])
        batch = notes.script.batch([insert(note(1)), delete({"id": 1})])
        notes.write(batch)
        assert notes.position() == batch.end

    def test_a_schema_change_of_an_empty_table_that_was_copied_twice(
        self, stage: MakeStage
    ) -> None:
        notes = stage(NOTES)
        notes.copy([])
        notes.copy([])
        column = ColumnSchema("extra", 9, STRING, 25)
        changed = replace(NOTES, columns=(*NOTES.columns, column), note=DdlNote(xid=1))
        change = SchemaChange(NOTES, changed)
        assert notes.destination.change_schema(change) is SchemaChangeAction.CONTINUE
        assert "extra" in self._spark.read.format("delta").load(str(self.path(notes))).columns

    def test_what_an_interrupted_copy_left_is_cleared(self, stage: MakeStage) -> None:
        notes = stage(NOTES)
        left = self.path(notes)
        left.mkdir(parents=True)
        (left / "_penstock_copy").write_text(notes.script.pipeline_id)
        (left / "part-00000-copy-0.parquet").write_bytes(b"half a file")
        (left / "_delta_log").mkdir()
        (left / "_delta_log" / ".first.tmp").write_text("")
        notes.copy([note(1)])
        assert notes.rows == [(1, None, None)]

    def test_files_of_somebody_else_are_never_touched(self, stage: MakeStage) -> None:
        notes = stage(NOTES)
        theirs = self.path(notes) / "theirs.parquet"
        theirs.parent.mkdir(parents=True)
        theirs.write_bytes(b"precious")
        with pytest.raises(PenstockError, match="not a Delta table") as refused:
            notes.copy([note(1)])
        assert refused.value.kind is ErrorKind.DESTINATION_REJECTED
        assert theirs.read_bytes() == b"precious"

    @pytest.mark.parametrize("name", [".", ".."])
    def test_a_file_where_a_table_s_directory_goes_is_to_be_moved_away(
        self, stage: MakeStage, name: str
    ) -> None:
        notes = stage(NOTES)
        place = Path(os.path.normpath(self.path(notes) / name))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("theirs")
        with pytest.raises(PenstockError, match="is not a directory") as refused:
            notes.copy([note(1)])
        assert refused.value.kind is ErrorKind.DESTINATION_REJECTED
        assert f"move {place} away" in (refused.value.hint or "")
        assert place.read_text() == "theirs"

    def test_a_second_copy_is_one_commit(self, notes: Stage) -> None:
        before = self.history(notes)[0]["version"]
        notes.copy([note(7)])
        assert self.history(notes)[0]["version"] == before + 1

    def test_a_second_copy_may_have_other_columns(self, notes: Stage) -> None:
        ntz = ValueType(ValueKind.TIMESTAMP_NTZ)
        changed = replace(
            NOTES,
            columns=(
                replace(NOTES.columns[0], type=STRING),
                ColumnSchema("when", 4, ntz, 1114),
                ColumnSchema("odd name (new)", 5, STRING, 25),
            ),
        )
        notes.table = notes.script.table = changed
        notes.copy([{"id": "x", "when": None, "odd name (new)": "y"}])
        assert notes.rows == [("x", None, "y")]
        notes.apply([update({"id": "x", "when": None, "odd name (new)": "z"})])
        assert notes.rows == [("x", None, "z")]

    def test_columns_that_differ_in_case_alone_are_refused(self, stage: MakeStage) -> None:
        columns = (*NOTES.columns, ColumnSchema("NOTE", 4, STRING, 25))
        notes = stage(replace(NOTES, columns=columns))
        with pytest.raises(PenstockError, match="'note' and 'NOTE'") as refused:
            notes.copy([])
        assert refused.value.kind is ErrorKind.DESTINATION_SCHEMA

    # Changes.

    def test_new_keys_are_appended_and_others_marked_deleted(self, notes: Stage) -> None:
        notes.apply([insert(note(4)), update(note(4, "x")), insert(note(5)), delete({"id": 5})])
        assert self.history(notes)[0]["operationParameters"]["mode"] == "Append"
        notes.apply([update(note(4, "y"))])
        metrics = self.history(notes)[0]["operationMetrics"]
        assert metrics["numCopiedRows"] == "0"

    @pytest.mark.parametrize("table", [NOTES, LINES], ids=["simple key", "composite key"])
    def test_a_large_batch(self, stage: MakeStage, table: TableSchema) -> None:
        def row(number: int, text: str | None) -> dict[str, Any]:
            return line(f"l{number}", number, text) if table is LINES else note(number, text)

        def key(number: int) -> dict[str, Any]:
            return {column.name: row(number, None)[column.name] for column in table.key}

        large = stage(table)
        large.copy([row(n, f"old {n}") for n in range(3000)], files=3)
        large.apply(
            [update(row(n, f"new {n}")) for n in range(0, 3000, 2)],
            [update(row(n, None), unchanged=["note"]) for n in range(0, 3000, 3)],
            [delete(key(n)) for n in range(0, 3000, 5)],
            [update(row(n + 10_000, None), key(n), unchanged=["note"]) for n in (7, 8)],
            [insert(row(n, "came")) for n in range(3000, 3100)],
        )
        expected = {n: f"new {n}" if n % 2 == 0 else f"old {n}" for n in range(3000) if n % 5}
        expected |= {10_007: expected.pop(7), 10_008: expected.pop(8)}
        expected |= dict.fromkeys(range(3000, 3100), "came")
        where = [c.name for c in table.columns]
        number, text = where.index(table.key[0].name), where.index("note")
        assert {row[number]: row[text] for row in large.rows} == expected
        assert len(large.rows) == len(expected)

    def test_a_value_that_is_nowhere_is_an_error_and_never_null(self, notes: Stage) -> None:
        with pytest.raises(PenstockError, match="did not resend"):
            notes.apply([update(note(99, rank=1), unchanged=["note"]), delete({"id": 1})])
        assert notes.rows == [(1, "one", 1), (2, "two", 2), (3, None, None)]

    def test_a_table_that_is_gone_is_not_made_anew_by_a_batch(self, notes: Stage) -> None:
        shutil.rmtree(self.path(notes))
        with pytest.raises(PenstockError, match="gone"):
            notes.apply([insert(note(4))])
        assert not self.path(notes).exists()

    def test_a_large_batch_of_keys_that_may_be_there(self, stage: MakeStage) -> None:
        large = stage(NOTES)
        large.copy([note(n, "old") for n in range(0, 3000, 2)])
        large.write(
            large.script.batch([insert(note(n, "new")) for n in range(3000)], publishes_all=False)
        )
        assert sorted(large.rows) == [(n, "new", None) for n in range(3000)]

    def test_a_large_batch_of_new_rows_that_lack_a_value(self, stage: MakeStage) -> None:
        large = stage(NOTES)
        large.copy([])
        lacking = Change("i", None, note(0), ("note",))
        changes = [lacking, *(insert(note(n)) for n in range(1, 3000)), update(note(7, "x"))]
        with pytest.raises(PenstockError, match="did not send"):
            large.apply(changes)
        assert large.rows == []

    # Whose a table is.

    def test_a_table_of_somebody_else_is_not_replaced(self, stage: MakeStage) -> None:
        theirs = stage(NOTES)
        self._spark.range(3).write.format("delta").save(str(self.path(theirs)))
        with pytest.raises(PenstockError, match="without a mark of ours"):
            theirs.copy([note(1)])
        assert self._spark.read.format("delta").load(str(self.path(theirs))).count() == 3

    def test_a_table_of_another_pipeline_is_not_replaced(self, notes: Stage) -> None:
        there = notes.rows
        notes.destination.startup(DestinationContext("other", self._spark, notes.store))
        with pytest.raises(PenstockError, match="a table of pipeline contract"):
            notes.copy([note(9)])
        assert notes.rows == there

    def test_changes_go_to_no_other_copy_than_their_own(self, notes: Stage) -> None:
        before = notes.script.batch([insert(note(4))])
        notes.copy([note(9)])
        with pytest.raises(PenstockError, match="another copy of this table has replaced"):
            notes.write(before)
        assert notes.rows == [(9, None, None)]

    # Exactly once.

    def test_an_older_batch_is_not_let_in_again(self, notes: Stage) -> None:
        first = notes.script.batch([insert(note(4))])
        second = notes.script.batch([update(note(4, "x")), delete({"id": 1})])
        notes.write(first)
        notes.write(second)
        before = notes.rows
        notes.write(replace(first))
        notes.write(replace(second))
        notes.write(joined(first, second))
        assert notes.rows == before

    def test_the_position_shows_behind_commits_of_others(self, notes: Stage) -> None:
        notes.apply([insert(note(4))])
        table = f"delta.`{self.path(notes)}`"
        self._spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('theirs' = 'yes')")
        session = self._spark.newSession()
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", '{"penstock": 1}')
        session.sql(f"COMMENT ON TABLE {table} IS 'theirs'")
        notes.restart()
        assert notes.position() == notes.script.end

    def test_compaction_gathers_small_files_and_keeps_the_position(
        self, notes: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "_MANY_FILES", 4)
        for number in range(4, 8):
            notes.apply([insert(note(number))])
        notes.apply([delete({"id": 5})])
        before = notes.rows
        notes.destination.maintain(NOTES)
        assert self.history(notes)[0]["operation"] == "OPTIMIZE"
        assert self.detail(notes)["numFiles"] == 1
        assert notes.rows == before
        assert notes.position() == notes.script.end
        version = self.history(notes)[0]["version"]
        notes.destination.maintain(NOTES)
        assert self.history(notes)[0]["version"] == version
        notes.apply([insert(note(9))])
        assert notes.position() == notes.script.end


class TestHistory:
    def test_every_change_is_appended_with_its_envelope(self, spark: Any, tmp_path: Path) -> None:
        stage = Stage(
            lambda: DeltaDestination(tmp_path / "lake", mode="history"),
            lambda destination, table: [],
            NOTES,
            tmp_path / "journal",
            spark,
        )
        stage.copy([note(1, "one")])
        stage.apply([insert(note(2)), update(note(2, rank=1), unchanged=["note"])])
        stage.apply([delete({"id": 1})])
        assert isinstance(stage.destination, DeltaDestination)
        frame = spark.read.format("delta").load(stage.destination.path(NOTES.name))
        found = frame.orderBy("commit_lsn", "tx_ordinal").collect()
        assert [row["op"] for row in found] == ["r", "i", "u", "d"]
        assert found[0]["after"].asDict() == note(1, "one")
        assert found[2]["unchanged"] == ["note"]
        assert found[3]["before"]["id"] == 1
        assert stage.position() == stage.script.end

    def test_another_copy_is_appended_once_and_columns_widen(
        self, spark: Any, tmp_path: Path
    ) -> None:
        narrow = with_rank(ValueKind.INTEGER)
        stage = Stage(
            lambda: DeltaDestination(tmp_path / "lake", mode="history"),
            lambda destination, table: [],
            narrow,
            tmp_path / "journal",
            spark,
        )

        def dies(rows: list[dict[str, Any]]) -> None:
            """A copy that is committed and not recorded."""
            stage.destination.drop_table_for_copy(stage.table, None)
            stage.destination.write_table_rows(stage.table, stage.script.copy(rows))
            stage.restart()

        def found() -> list[tuple[str, int]]:
            assert isinstance(stage.destination, DeltaDestination)
            frame = spark.read.format("delta").load(stage.destination.path(NOTES.name))
            rows = frame.orderBy("commit_lsn", "tx_ordinal", "after.id").collect()
            return [(row["op"], (row["after"] or row["before"])["id"]) for row in rows]

        stage.copy([note(1)])
        stage.apply([insert(note(2))])
        end = stage.script.end
        dies([note(1), note(5)])
        stage.copy([note(1), note(3)])
        appended = [("r", 1), ("i", 2), ("r", 1), ("r", 3)]
        assert stage.position() == end, "what was there is not sent again"
        stage.apply([delete({"id": 3})])
        assert found() == [*appended, ("d", 3)]

        for _ in range(2):
            change = SchemaChange(narrow, NOTES)
            assert stage.destination.change_schema(change) is SchemaChangeAction.CONTINUE
        assert stage.position() == stage.script.end
        for other in (with_rank(ValueKind.STRING), narrow):
            with pytest.raises(PenstockError, match="column rank is bigint") as refused:
                stage.destination.change_schema(SchemaChange(NOTES, other))
            assert "begins another history" in refused.value.hint
        with pytest.raises(PenstockError, match="a history cannot hold both"):
            dies([note(7)])
        stage.table = stage.script.table = NOTES
        stage.copy([note(7, rank=2**40)])
        assert found() == [*appended, ("d", 3), ("r", 7)]


def with_rank(kind: ValueKind) -> TableSchema:
    """NOTES, where `rank` is of another type."""
    columns = (replace(c, type=ValueType(kind)) if c.name == "rank" else c for c in NOTES.columns)
    return replace(NOTES, columns=tuple(columns))


def test_an_unwritable_root_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    destination = DeltaDestination(tmp_path / "file" / "lake")
    with pytest.raises(PenstockError, match="cannot write to") as refused:
        destination.startup(None)  # type: ignore[arg-type]
    assert refused.value.kind is ErrorKind.DESTINATION_REJECTED
    assert refused.value.hint


@pytest.mark.parametrize("root", ["s3://bucket/lake", "s3a://bucket/lake"])
def test_a_root_that_spark_has_no_file_system_for_is_one_clear_error(
    spark: SparkSession, root: str
) -> None:
    context = DestinationContext("shop", spark, MemoryStore())
    with pytest.raises(PenstockError, match=f"no file system for {root}: ") as refused:
        DeltaDestination(root).startup(context)
    assert refused.value.kind is ErrorKind.DESTINATION_REJECTED
    for remedy in ("spark.jars.packages: io.delta:", "hadoop-aws", "s3a://", "access.key"):
        assert remedy in (refused.value.hint or "")


def test_a_root_that_cannot_be_reached_for_now_keeps_nothing_from_starting(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    context = DestinationContext("shop", spark, MemoryStore())
    DeltaDestination("hdfs://localhost:1/lake").startup(context)
    assert "cannot be reached yet" in caplog.text


def test_what_is_not_there_yet_is_refused() -> None:
    with pytest.raises(PenstockError, match="catalog") as refused:
        DeltaDestination("/lake", catalog="unity")
    assert refused.value.kind is ErrorKind.CONFIG
    with pytest.raises(PenstockError, match="no mode 'mirrored'"):
        DeltaDestination("/lake", mode="mirrored")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "name", "path"),
    [
        ("public", "orders", "public/orders"),
        ("Sales EU", "a/b", "Sales%20EU/a%2Fb"),
        ("..", ".", "%2E./%2E"),
        ("_temporary", "_delta_log", "%5Ftemporary/%5Fdelta_log"),
        ("naïve", "50%", "na%C3%AFve/50%25"),
    ],
)
def test_odd_names_make_sound_paths(schema: str, name: str, path: str) -> None:
    assert DeltaDestination("/lake/").path(TableName(schema, name)) == f"/lake/{path}"


def test_a_root_may_be_a_url_or_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert DeltaDestination("lake").root == str(tmp_path / "lake")
    assert DeltaDestination("file:///data/my%20lake").root == "/data/my lake"
    assert DeltaDestination("s3a://bucket/lake/").root == "s3a://bucket/lake"
