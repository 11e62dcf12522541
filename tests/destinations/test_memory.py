"""MemoryDestination keeps rows and events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.destinations import MemoryDestination
from penstock.destinations.base import Destination
from penstock.events import Begin, Commit, Insert, OldRow, Relation, Truncate, Update
from penstock.schema import Lsn, TableSchema
from penstock.testing.destination_contract import DestinationContract
from penstock.testing.sample_tables import NOTES, note
from penstock.testing.segments import insert, truncate, update
from penstock.testing.stage import Stage


class TestMemoryDestination(DestinationContract):
    @pytest.fixture(autouse=True)
    def _one_object(self) -> None:
        self._destination = MemoryDestination()

    def make_destination(self, tmp_path: Path) -> Destination:
        return self._destination

    def read_rows(self, destination: Destination, table: TableSchema) -> list[dict[str, Any]]:
        assert isinstance(destination, MemoryDestination)
        return destination.rows(table.name)

    def test_events_come_in_order_with_brackets_around_each_transaction(self, notes: Stage) -> None:
        batch = notes.script.batch(
            [insert(note(4, "four")), update(note(4, rank=1), unchanged=["note"])],
            [truncate()],
            [insert(note(5)), update(note(6, "x"), {"id": 5})],
            begins_version=True,
        )
        notes.write(batch)
        events = self._destination.events("public.notes")
        kinds = [Relation, Begin, Insert, Update, Commit, Begin, Truncate, Commit]
        assert [type(event) for event in events] == [*kinds, Begin, Insert, Update, Commit]
        assert isinstance(events[0], Relation)
        assert events[0].schema == NOTES
        partial, moved = events[3], events[10]
        assert isinstance(partial, Update)
        assert partial.new == {"id": 4, "rank": 1}
        assert (partial.old, partial.missing) == (None, ("note",))
        assert isinstance(moved, Update)
        assert (moved.old, moved.old_kind) == ({"id": 5}, OldRow.KEY)
        places = [(event.commit_lsn, event.tx_ordinal) for event in events[1:]]
        assert places == sorted(places)
        begin = events[1]
        assert isinstance(begin, Begin)
        assert begin.commit_ts.tzinfo is not None

    def test_parts_of_a_flush_may_share_a_transaction(self, notes: Stage) -> None:
        """A version that begins in it parts the two."""
        script, before = notes.script, notes.rows
        first = script.batch([insert(note(7))])
        end, script.end = script.end, first.start
        second = script.batch([insert(note(8))])
        assert end == script.end
        parted = Lsn(first.end.value - 1)
        notes.write(replace(first, end=parted))
        notes.write(replace(second, start=parted))
        assert notes.rows == [*before, (7, None, None), (8, None, None)]

    def test_tables_are_listed_and_unknown_ones_are_empty(self, notes: Stage) -> None:
        assert self._destination.tables == [NOTES.name]
        assert self._destination.rows("public.unknown") == []
        assert self._destination.events("public.unknown") == []
