"""One file of the journal: changes of one table under one schema version.

A segment is plain Parquet with the envelope of the contract: `op`, `commit_lsn`,
`tx_ordinal`, `commit_ts`, `xid`, `before`, `after`, `unchanged`. A column that no
row of the segment fills is left out of the file, and `before` has only the key
columns unless the table sends whole old rows; a reader that asks for the full
schema sees NULLs there.

`Chunk` is a piece of a segment in memory, as it came out of one buffer. Chunks of
one table are joined when the segment is written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.journal.manifest import ChangeCounts, Defect, SegmentRef
from penstock.schema import TableSchema

_REPEATING = ["op"]
"""Columns with a dictionary. In the others, even the transaction's, it would only cost time."""
_ROWS_PER_GROUP = 1_000_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Changes of one table, with what the manifest will say of them."""

    schema: TableSchema
    rows: pa.Table
    counts: ChangeCounts
    has_unchanged: bool
    key_changes: int
    key_range: tuple[int, int] | None
    defects: tuple[Defect, ...]
    truncated_by: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return int(self.rows.nbytes)


def write_segment(path: Path, root: Path, chunks: Sequence[Chunk]) -> SegmentRef:
    """Write chunks of one table and version as one file; durable when this returns.

    (Its name is made durable by the caller, who knows when the directory is complete.)
    """
    schema = chunks[0].schema
    rows = pa.concat_tables([chunk.rows for chunk in chunks], promote_options="default")
    with path.open("xb") as file:
        pq.write_table(
            rows,
            file,
            compression="lz4",
            use_dictionary=_REPEATING,
            write_statistics=False,
            store_schema=False,
            row_group_size=_ROWS_PER_GROUP,
        )
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    ranges = [chunk.key_range for chunk in chunks if chunk.key_range is not None]
    return SegmentRef(
        path=str(path.relative_to(root)),
        table_id=schema.id,
        schema_version=schema.version,
        rows=rows.num_rows,
        bytes=size,
        counts=sum((chunk.counts for chunk in chunks), ChangeCounts()),
        has_unchanged=any(chunk.has_unchanged for chunk in chunks),
        key_changes=sum(chunk.key_changes for chunk in chunks),
        key_min=min((low for low, _ in ranges), default=None),
        key_max=max((high for _, high in ranges), default=None),
        defects=_merge(defect for chunk in chunks for defect in chunk.defects),
        truncated_by=tuple(xid for chunk in chunks for xid in chunk.truncated_by),
    )


def _merge(defects: object) -> tuple[Defect, ...]:
    """One defect a column: the first row that has it, and how many there are."""
    first: dict[tuple[str, bool], Defect] = {}
    for defect in defects:  # type: ignore[attr-defined]
        known = first.get((defect.column, defect.unsent))
        count = defect.count + (known.count if known else 0)
        shown = known or defect
        first[defect.column, defect.unsent] = replace(shown, count=count)
    return tuple(first.values())
