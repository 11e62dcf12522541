"""The behaviour every destination must have, as tests that its author inherits.

    class TestMyDestination(DestinationContract):
        def make_destination(self, tmp_path):
            return MyDestination(tmp_path / "out")

        def read_rows(self, destination, table):
            return [...]  # a dict for each row that is there now

`make_destination` is called again for the same `tmp_path` where a test restarts the pipeline: it
must find what was written before (a destination that lives in its object may give the same object
back). The tests need a fixture `spark`: a session made by `penstock.spark.session.build_session`.

The suite is for destinations that mirror their source. One that cannot tell its
`position` says so with `tells_position = False`.

In the test modules that use it, or their `conftest.py`, before importing it:
`pytest.register_assert_rewrite("penstock.testing.destination_contract")`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.destinations.base import Destination
from penstock.errors import PenstockError
from penstock.schema import ReplicaIdentity, TableSchema
from penstock.states import VisibleXids
from penstock.testing.sample_tables import (
    EXTREME,
    KEYLESS,
    LINES,
    NOTES,
    ODD,
    SIZES,
    TYPES,
    TYPICAL,
    WORDS,
    line,
    note,
)
from penstock.testing.segments import Change, delete, insert, joined, truncate, update
from penstock.testing.stage import Stage, comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DestinationContract(ABC):
    """Inherit, give the two methods, and run with pytest."""

    tells_position = True

    @abstractmethod
    def make_destination(self, tmp_path: Path) -> Destination: ...

    @abstractmethod
    def read_rows(self, destination: Destination, table: TableSchema) -> list[dict[str, Any]]: ...

    @pytest.fixture
    def stage(self, tmp_path: Path, spark: SparkSession) -> Callable[[TableSchema], Stage]:
        def make(table: TableSchema) -> Stage:
            return Stage(
                lambda: self.make_destination(tmp_path),
                self.read_rows,
                table,
                tmp_path / "journal",
                spark,
            )

        return make

    @pytest.fixture
    def notes(self, stage: Callable[[TableSchema], Stage]) -> Stage:
        """A table with three rows, copied."""
        notes = stage(NOTES)
        notes.copy([note(1, "one", 1), note(2, "two", 2), note(3, None, None)], files=2)
        return notes

    # Copies.

    def test_a_copy_is_there(self, notes: Stage) -> None:
        assert notes.rows == [(1, "one", 1), (2, "two", 2), (3, None, None)]

    def test_an_empty_table_exists_and_takes_changes(
        self, stage: Callable[[TableSchema], Stage]
    ) -> None:
        empty = stage(NOTES)
        empty.copy([])
        assert empty.rows == []
        empty.apply([insert(note(1, "one"))])
        assert empty.rows == [(1, "one", None)]

    def test_an_empty_table_that_is_copied_again_takes_changes(
        self, stage: Callable[[TableSchema], Stage]
    ) -> None:
        empty = stage(NOTES)
        empty.copy([])
        empty.copy([])
        empty.apply([insert(note(1, "one"))])
        assert empty.rows == [(1, "one", None)]
        empty.apply([delete({"id": 1})])
        empty.copy([])
        empty.apply([insert(note(2, "two"))])
        assert empty.rows == [(2, "two", None)]

    def test_a_second_copy_replaces_the_first_and_what_followed_it(self, notes: Stage) -> None:
        notes.apply([insert(note(4)), update(note(1, "changed"))])
        notes.copy([note(2, "again"), note(9, "new")])
        assert notes.rows == [(2, "again", None), (9, "new", None)]
        notes.apply([update(note(9, "newer"))])
        assert notes.rows == [(2, "again", None), (9, "newer", None)]
        notes.copy([])
        assert notes.rows == []

    def test_preparing_for_a_copy_may_be_repeated(self, notes: Stage) -> None:
        notes.destination.drop_table_for_copy(notes.table, notes.table)
        notes.destination.drop_table_for_copy(notes.table, notes.table)
        notes.copy([note(7)])
        assert notes.rows == [(7, None, None)]

    # Changes.

    def test_every_operation(self, notes: Stage) -> None:
        notes.apply([insert(note(4, "four")), insert(note(5))])
        notes.apply([update(note(2, None, 22))], [delete({"id": 1}), insert(note(6, "six"))])
        assert notes.rows == [
            (2, None, 22),
            (3, None, None),
            (4, "four", None),
            (5, None, None),
            (6, "six", None),
        ]
        notes.apply([delete({"id": key}) for key in (2, 3, 4, 5, 6)])
        assert notes.rows == []

    def test_the_last_change_of_a_key_wins(self, notes: Stage) -> None:
        notes.apply(
            [update(note(1, "a")), update(note(1, "b"))],
            [delete({"id": 2}), insert(note(2, "back"))],
            [insert(note(4, "came")), delete({"id": 4})],
            [insert(note(5, "x")), update(note(5, "y")), delete({"id": 3})],
            [update(note(1, "c"))],
        )
        assert notes.rows == [(1, "c", None), (2, "back", None), (5, "y", None)]

    def test_a_batch_of_new_keys_that_change_and_go_again(self, notes: Stage) -> None:
        notes.apply(
            [insert(note(4, "a")), insert(note(5, "b")), update(note(4, "c"))],
            [delete({"id": 5}), insert(note(6, "d")), update(note(7, "d"), {"id": 6})],
        )
        assert notes.rows == [
            (1, "one", 1),
            (2, "two", 2),
            (3, None, None),
            (4, "c", None),
            (7, "d", None),
        ]

    def test_an_update_that_changes_the_key_moves_the_row(self, notes: Stage) -> None:
        notes.apply(
            [update(note(10, "moved"), {"id": 1})],
            # Two rows trade their keys, through a third.
            [update(note(0, "two"), {"id": 2})],
            [update(note(2, "three"), {"id": 3})],
            [update(note(3, "two"), {"id": 0})],
        )
        assert notes.rows == [(10, "moved", None), (2, "three", None), (3, "two", None)]

    def test_a_composite_key(self, stage: Callable[[TableSchema], Stage]) -> None:
        lines = stage(LINES)
        lines.copy([line("a", 1), line("b", 1), line("a", 2, "keep")])
        lines.apply(
            [update(line("a", 1, "changed")), delete({"line": "b", "order": 1})],
            [update(line("o'h\\☃", 3, "odd"), {"line": "a", "order": 2})],
            [update(line("o'h\\☃", 3, None), unchanged=["note"])],
        )
        assert lines.rows == [("a", 1, "changed"), ("o'h\\☃", 3, "odd")]

    def test_a_text_key(self, stage: Callable[[TableSchema], Stage]) -> None:
        words = stage(WORDS)
        keys = ["a", "o'h", "back\\slash", "☃", "", 'quo"te', "line\nbreak", "`tick`", "%"]
        words.copy([{"id": key, "note": "old", "rank": 1} for key in keys])
        words.apply([update({"id": key, "note": "new", "rank": 2}) for key in keys[:-1]])
        words.apply([delete({"id": key}) for key in keys[1:-2]])
        assert words.rows == [("%", "old", 1), ("`tick`", "new", 2), ("a", "new", 2)]

    def test_a_text_key_is_not_taken_for_a_variable(
        self, stage: Callable[[TableSchema], Stage]
    ) -> None:
        """Spark puts in what is in the environment, where it is let."""
        words = stage(WORDS)
        home, variable = os.environ.get("HOME", "/"), "${env:HOME}"
        words.copy([{"id": home, "note": "home", "rank": 1}])
        words.apply([insert({"id": variable, "note": "a", "rank": 1}), delete({"id": "none"})])
        words.apply([update({"id": variable, "note": None, "rank": 2}, unchanged=["note"])])
        assert words.rows == [(variable, "a", 2), (home, "home", 1)]
        words.apply([delete({"id": variable})])
        assert words.rows == [(home, "home", 1)]

    def test_a_key_that_should_not_be_there_is_replaced(self, notes: Stage) -> None:
        """The publication leaves deletes out, and the key came again."""
        again = [insert(note(1, "again")), insert(note(4)), insert(note(4, "twice"))]
        notes.write(notes.script.batch(again, publishes_all=False))
        notes.write(notes.script.batch([insert(note(2)), delete({"id": 2})], publishes_all=False))
        assert notes.rows == [(1, "again", None), (3, None, None), (4, "twice", None)]

    # Values that Postgres did not resend.

    @pytest.mark.parametrize("before", [[], [delete({"id": 2})], [truncate()]])
    def test_a_new_row_that_lacks_a_value_is_refused(
        self, notes: Stage, before: list[Change]
    ) -> None:
        """An update brought it into the row filter."""
        there = notes.rows
        with pytest.raises(PenstockError, match="did not send"):
            notes.apply([*before, Change("i", None, note(2), ("note",))])
        assert notes.rows == there

    @pytest.mark.parametrize("before", [[], [truncate()]])
    def test_a_value_that_is_nowhere_is_no_null(self, notes: Stage, before: list[Change]) -> None:
        """The publication leaves inserts out, and the row came after the copy."""
        there = notes.rows
        lacking = [*before, update(note(5, rank=5), unchanged=["note"])]
        with pytest.raises(PenstockError):
            notes.write(notes.script.batch(lacking, publishes_all=False))
        assert notes.rows == there

    def test_an_unchanged_value_is_kept(self, notes: Stage) -> None:
        notes.apply([update(note(1, rank=10), unchanged=["note"]), delete({"id": 3})])
        assert notes.rows == [(1, "one", 10), (2, "two", 2)]

    def test_an_unchanged_value_comes_from_an_earlier_change(self, notes: Stage) -> None:
        notes.apply(
            [insert(note(4, "four")), update(note(1, "new"))],
            [update(note(4, rank=4), unchanged=["note"])],
            [update(note(1, rank=11), unchanged=["note"])],
            [update(note(2, rank=22), unchanged=["note"])],
            [update(note(3, rank=33), unchanged=["note"])],
        )
        assert notes.rows == [(1, "new", 11), (2, "two", 22), (3, None, 33), (4, "four", 4)]

    def test_an_unchanged_value_goes_with_its_row_to_another_key(self, notes: Stage) -> None:
        notes.apply(
            # 1 becomes 10, then 11; another row takes its old key.
            [update(note(10, rank=10), {"id": 1}, unchanged=["note"])],
            [update(note(11, rank=11), {"id": 10}, unchanged=["note"])],
            [insert(note(1, "other"))],
            # 2 gets a new note, moves, and comes back.
            [update(note(2, "new")), update(note(20, rank=20), {"id": 2}, unchanged=["note"])],
            [update(note(2, rank=22), {"id": 20}, unchanged=["note"])],
            # A new row moves; then onto the key of one that was deleted.
            [insert(note(4, "four")), delete({"id": 3})],
            [update(note(3, rank=3), {"id": 4}, unchanged=["note"])],
        )
        assert notes.rows == [(1, "other", None), (11, "one", 11), (2, "new", 22), (3, "four", 3)]

    def test_an_unchanged_value_does_not_stand_in_a_bare_key(
        self, stage: Callable[[TableSchema], Stage]
    ) -> None:
        """A partition may send its key only, while its root's identity is full."""
        full = stage(replace(NOTES, identity=ReplicaIdentity.FULL))
        full.copy([note(1, "one", 1), note(2, "two", 2)])
        full.apply(
            [update(note(1, rank=11), unchanged=["note"])],
            [update(note(3, rank=3), note(2, None), unchanged=["note"])],
        )
        assert full.rows == [(1, "one", 11), (3, "two", 3)]

    # Truncate.

    def test_a_truncate_empties_the_table(self, notes: Stage) -> None:
        notes.apply([truncate()])
        assert notes.rows == []

    def test_only_what_follows_the_last_truncate_counts(self, notes: Stage) -> None:
        notes.apply(
            [insert(note(4)), truncate(), insert(note(5))],
            [update(note(5, "x")), truncate(), insert(note(1, "again")), insert(note(6))],
            [update(note(6, "six")), insert(note(7)), delete({"id": 7})],
        )
        assert notes.rows == [(1, "again", None), (6, "six", None)]

    # Tables without a key.

    def test_rows_without_a_key_are_told_apart_by_all_columns(
        self, stage: Callable[[TableSchema], Stage]
    ) -> None:
        log = stage(KEYLESS)
        log.copy([note(1, "a"), note(1, "a"), note(1, "a"), note(2, None)])
        log.apply([insert(note(2, None)), insert(note(3, "c", 3))])
        log.apply(
            [delete(note(1, "a")), update(note(1, "b"), note(1, "a"))],
            [delete(note(2, None)), insert(note(9)), delete(note(9))],
            [update(note(3, "c", 4), note(3, "c", 3))],
        )
        assert log.rows == [(1, "a", None), (1, "b", None), (2, None, None), (3, "c", 4)]
        log.apply([truncate(), insert(note(5)), insert(note(5)), delete(note(5))])
        assert log.rows == [(5, None, None)]
        log.write(log.script.batch([delete(note(n)) for n in (5, 5, 8)], copied_all=False))
        assert log.rows == []

    def test_rows_without_a_key_are_told_apart_by_the_sign_of_a_zero(
        self, stage: Callable[[TableSchema], Stage]
    ) -> None:
        log = stage(SIZES)
        below, zero, other = ({"size": n, "sizes": [n, 1.0]} for n in (-0.0, 0.0, 2.0))
        log.copy([zero, zero, zero, below, other])
        log.apply([update(below, zero)])
        assert [str(size) for size, _ in log.rows] == ["-0.0", "-0.0", "0.0", "0.0", "2.0"]
        log.apply([delete(below), delete(zero), insert(below), delete(below)])
        assert repr(log.rows) == "[(-0.0, [-0.0, 1.0]), (0.0, [0.0, 1.0]), (2.0, [2.0, 1.0])]"
        log.apply([truncate(), insert(zero), insert(below), update(below, zero)])
        assert repr(log.rows) == "[(-0.0, [-0.0, 1.0]), (-0.0, [-0.0, 1.0])]"

    # Where a copy and the stream meet, and what a crash leaves.

    def test_changes_that_the_copy_contains_are_left_out(self, notes: Stage) -> None:
        first = notes.script.xid + 1
        # The snapshot was taken before the last of these transactions began, while
        # the third was running, one turn of the 32-bit counter later.
        visible = VisibleXids(first, first + 4 + 2**32, (first + 2 + 2**32,))
        notes.apply(
            [insert(note(1, "one"))],
            [truncate(), delete({"id": 2})],
            [update(note(1, "three"))],
            [delete({"id": 9})],
            [insert(note(5, "five"))],
            visible=visible,
        )
        assert notes.rows == [(1, "three", None), (2, "two", 2), (3, None, None), (5, "five", None)]

    def test_a_batch_that_the_copy_contains_whole_changes_nothing(self, notes: Stage) -> None:
        visible = VisibleXids(notes.script.xid, notes.script.xid + 100)
        notes.apply([truncate(), insert(note(1, "x"))], [delete({"id": 2})], visible=visible)
        notes.apply([insert(note(1, "x"))], visible=visible)
        assert notes.rows == [(1, "one", 1), (2, "two", 2), (3, None, None)]

    def test_the_position_is_that_of_the_last_batch(self, notes: Stage) -> None:
        if not self.tells_position:
            assert notes.position() is None
            return
        assert notes.position() is None
        notes.apply([insert(note(4))])
        first = notes.script.end
        assert notes.position() == first
        notes.apply([update(note(4, "x"))], [delete({"id": 1})])
        notes.restart()
        assert notes.position() == notes.script.end > first
        notes.copy([note(1)])
        assert notes.position() is None

    def test_a_repeated_batch_changes_nothing(self, notes: Stage) -> None:
        batch = notes.script.batch([insert(note(4, "four")), update(note(1, "x"))])
        notes.write(batch)
        notes.restart()
        notes.write(replace(batch))
        assert notes.rows == [(1, "x", None), (2, "two", 2), (3, None, None), (4, "four", None)]

    def test_after_a_crash_the_stream_goes_on_at_the_position(self, notes: Stage) -> None:
        """The batch that was committed but not recorded comes again, and has grown."""
        if not self.tells_position:
            return
        first = notes.script.batch([insert(note(4, "four"))])
        second = notes.script.batch([insert(note(5, "five")), update(note(4, "more"))])
        notes.write(first)
        notes.restart()
        position = notes.position()
        assert position == first.end
        grown = joined(*[batch for batch in (first, second) if batch.end > position])
        notes.write(grown)
        assert notes.rows == [
            (1, "one", 1),
            (2, "two", 2),
            (3, None, None),
            (4, "more", None),
            (5, "five", None),
        ]

    # What rows may look like.

    def test_all_types(self, stage: Callable[[TableSchema], Stage]) -> None:
        types = stage(TYPES)
        names = [column.name for column in TYPES.columns]
        empty = {**dict.fromkeys(names), "id": 3}
        copied, streamed = {"id": 1, **TYPICAL}, {"id": 2, **EXTREME}
        types.copy([copied, {**empty, "id": 4}])
        types.apply([insert(streamed), insert(empty)])
        expected = [copied, streamed, empty, {**empty, "id": 4}]
        assert types.rows == [comparable(row.values()) for row in expected]
        types.apply([update({**copied, "id": 2}), update({**streamed, "id": 1})])
        expected[:2] = [{**streamed, "id": 1}, {**copied, "id": 2}]
        assert types.rows == [comparable(row.values()) for row in expected]

    def test_odd_names(self, stage: Callable[[TableSchema], Stage]) -> None:
        odd = stage(ODD)
        names = [column.name for column in ODD.columns]

        def row(*values: Any) -> dict[str, Any]:
            return dict(zip(names, values, strict=True))

        odd.copy([row(*[n] * len(names)) for n in (1, 2)])
        odd.apply([insert(row(*[3] * len(names)))])
        odd.apply([update(row(2, *[22] * (len(names) - 1))), delete({names[0]: 1})])
        odd.apply([update(row(4, *[22] * (len(names) - 1)), {names[0]: 2})])
        assert odd.rows == [(3,) * len(names), (4, *[22] * (len(names) - 1))]
