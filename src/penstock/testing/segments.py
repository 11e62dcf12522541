"""Copies and batches of changes made by hand, as if a receiver had written them.

    script = Script(table, tmp_path, session)
    rows = script.copy([{"id": 1, "note": "a"}])
    batch = script.batch([insert({"id": 2, "note": "b"}), delete({"id": 1})], [truncate()])

Each list is one transaction. Files are laid out like the real ones: columns that
no row fills are left out, and old rows have only the key unless the table's
replica identity is full.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.changes.batches import ChangeBatch, TableRows
from penstock.journal.manifest import ChangeCounts, SegmentRef
from penstock.postgres.types import arrow_type
from penstock.schema import ZERO_LSN, Lsn, ReplicaIdentity, TableSchema
from penstock.spark.session import own_session
from penstock.states import VisibleXids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Values = Mapping[str, Any]

_FIRST_COMMIT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
_STEP = 0x100
_COMMIT_RECORD = 0x30
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Change:
    """One change; `before` and `after` as Postgres would send them."""

    op: str
    before: Values | None = None
    after: Values | None = None
    unchanged: tuple[str, ...] = ()


def insert(row: Values) -> Change:
    return Change("i", after=row)


def update(row: Values, old: Values | None = None, unchanged: Sequence[str] = ()) -> Change:
    """`old` where Postgres sends one: the key changed, or the identity is full."""
    return Change("u", old, {**row, **dict.fromkeys(unchanged)}, tuple(unchanged))


def delete(old: Values) -> Change:
    return Change("d", before=old)


def truncate() -> Change:
    return Change("t")


class Script:
    """Writes the files of one table and says what a destination would be handed."""

    def __init__(
        self,
        table: TableSchema,
        directory: Path,
        session: SparkSession,
        pipeline_id: str = "contract",
    ) -> None:
        self.table = table
        self.directory = directory
        self.session = own_session(session)
        self.pipeline_id = pipeline_id
        self.copy_id = "none"
        self.end = ZERO_LSN
        self.xid = 1000
        directory.mkdir(parents=True, exist_ok=True)

    def copy(self, rows: Sequence[Values], files: int = 1) -> TableRows:
        """A copy of these rows, spread over some files; batches build on it from now on."""
        self.copy_id = f"copy-{next(_numbers)}"
        paths = []
        for number in range(files if rows else 0):
            path = self.directory / f"{self.copy_id}-{number}.parquet"
            pq.write_table(self._rows(rows[number::files]), path, compression="lz4")
            paths.append(str(path))
        return TableRows(self.copy_id, self.table, tuple(paths), len(rows), lambda: self.session)

    def batch(
        self,
        *transactions: Sequence[Change],
        visible: VisibleXids | None = None,
        begins_version: bool = False,
        publishes_all: bool = True,
        copied_all: bool = True,
    ) -> ChangeBatch:
        """The next batch: one segment, with these transactions."""
        start = self.end
        rows = []
        for changes in transactions:
            commit = self.end.value + _STEP
            self.xid += 1
            rows += [
                self._envelope(change, commit, ordinal) for ordinal, change in enumerate(changes)
            ]
            self.end = Lsn(commit + _COMMIT_RECORD)
        path = self.directory / f"segment-{next(_numbers)}.parquet"
        pq.write_table(
            self._segment(rows), path, compression="lz4", store_schema=False, write_statistics=False
        )
        return ChangeBatch(
            self.pipeline_id,
            self.copy_id,
            self.table,
            start,
            self.end,
            (self._describe(path, [change for changes in transactions for change in changes]),),
            (str(path),),
            lambda: self.session,
            visible,
            begins_version,
            publishes_all,
            copied_all,
        )

    def _envelope(self, change: Change, commit: int, ordinal: int) -> dict[str, Any]:
        return {
            "op": change.op,
            "commit_lsn": commit,
            "tx_ordinal": ordinal,
            "commit_ts": _FIRST_COMMIT + timedelta(microseconds=commit),
            "xid": self.xid,
            "before": change.before,
            "after": change.after,
            "unchanged": list(change.unchanged) or None,
        }

    def _rows(self, rows: Sequence[Values]) -> pa.Table:
        schema = pa.schema([(c.name, arrow_type(c.type)) for c in self.table.columns])
        return pa.Table.from_pylist([dict(row) for row in rows], schema)

    def _segment(self, rows: Sequence[Values]) -> pa.Table:
        table = self.table
        full = table.identity is ReplicaIdentity.FULL
        old = table.columns if full else table.key
        fields = [
            ("op", pa.string()),
            ("commit_lsn", pa.int64()),
            ("tx_ordinal", pa.int64()),
            ("commit_ts", pa.timestamp("us", tz="UTC")),
            ("xid", pa.int64()),
            ("before", pa.struct([(c.name, arrow_type(c.type)) for c in old])),
            ("after", pa.struct([(c.name, arrow_type(c.type)) for c in table.columns])),
            ("unchanged", pa.list_(pa.string())),
        ]
        filled = [
            (name, type)
            for name, type in fields  # noqa: A001
            if name not in ("before", "after", "unchanged") or any(row[name] for row in rows)
        ]
        return pa.Table.from_pylist([dict(row) for row in rows], pa.schema(filled))

    def _describe(self, path: Path, changes: Sequence[Change]) -> SegmentRef:
        ops = [change.op for change in changes]
        keys = [
            side[self.table.key[0].name]
            for change in changes
            for side in (change.before, change.after)
            if side and self.table.key and side.get(self.table.key[0].name) is not None
        ]
        ranged = bool(keys) and all(isinstance(key, int) for key in keys)
        return SegmentRef(
            path=path.name,
            table_id=self.table.id,
            schema_version=self.table.version,
            rows=len(changes),
            bytes=path.stat().st_size,
            counts=ChangeCounts(*(ops.count(op) for op in "iudt")),
            has_unchanged=any(change.unchanged for change in changes),
            key_changes=sum(change.op == "u" and change.before is not None for change in changes),
            key_min=min(keys) if ranged else None,
            key_max=max(keys) if ranged else None,
        )


def joined(*batches: ChangeBatch) -> ChangeBatch:
    """Batches that follow each other as one: what a repeated batch that grew looks like."""
    first, last = batches[0], batches[-1]
    return replace(
        first,
        end=last.end,
        segments=tuple(segment for batch in batches for segment in batch.segments),
        files=tuple(file for batch in batches for file in batch.files),
    )
