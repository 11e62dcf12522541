"""The journal replayed from empty, in plain Python: an oracle for tests.

Slow and simple on purpose, and independent of Spark and of `net_effect`: rows in a
dictionary by key, changes in their order, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock.journal.journal import Journal
from penstock.schema import ZERO_LSN, Lsn, TableId, TableSchema
from penstock.states import VisibleXids

Row = dict[str, Any]


def journaled_changes(journal: Journal, table_id: TableId, after: Lsn = ZERO_LSN) -> list[Row]:
    """A table's changes in order, with all envelope columns present."""
    changes = [
        {"before": None, "after": None, "unchanged": None} | row
        for flush in journal.pending(table_id, after)
        for segment in flush.segments
        for row in pq.read_table(Path(journal.file(segment))).to_pylist()
    ]
    return sorted(changes, key=lambda row: (row["commit_lsn"], row["tx_ordinal"]))


def replay(
    journal: Journal,
    schema: TableSchema,
    start: dict[tuple[Any, ...], Row] | None = None,
    visible: VisibleXids | None = None,
) -> dict[tuple[Any, ...], Row]:
    """The table's rows by key after every change in the journal.

    `start` are the rows of a copy, `visible` the transactions that it contains.
    """
    names = [column.name for column in schema.key]

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in names)

    rows = dict(start or {})
    for change in _unseen(journaled_changes(journal, schema.id), visible):
        before, after = change["before"], change["after"]
        if change["op"] == "t":
            rows.clear()
            continue
        old = before or after
        previous = rows.get(key(old), {}) if change["op"] != "i" else {}
        if change["op"] in "ud":
            rows.pop(key(old), None)
        if change["op"] in "iu":
            kept = {name: previous[name] for name in change["unchanged"] or ()}
            rows[key(after)] = after | kept
    return rows


def replayed_rows(journal: Journal, schema: TableSchema) -> list[Row]:
    """The table's rows after every change in the journal, also where it has no key.

    Without one every old row comes whole, and some row that is equal to it goes.
    """
    if schema.key:
        return list(replay(journal, schema).values())
    rows: dict[str, list[Row]] = {}  # by how they look, where NaN is equal to itself
    for change in journaled_changes(journal, schema.id):
        before, after = change["before"], change["after"]
        if change["op"] == "t":
            rows.clear()
        if change["op"] in "ud":
            rows[repr(before)].pop()
        if change["op"] in "iu":
            rows.setdefault(repr(after), []).append(after)
    return [row for equals in rows.values() for row in equals]


def _unseen(changes: list[Row], visible: VisibleXids | None) -> Iterator[Row]:
    for change in changes:
        if visible is None or not visible.contains(change["xid"]):
            yield change
