"""What of the journal a table's copy contains already.

Changes of transactions that the copy's snapshot saw are left out of every batch
until the cursor has passed the barrier. Where they are *all* that a run of
segments holds, more can be left out: a schema version that was over when the
copy was made must not be applied to it, and a value that no column could hold
but that was mended before the copy is nobody's trouble any more.

Both are rare, so the few columns that tell are read right here, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.journal.manifest import Defect
from penstock.schema import TableSchema
from penstock.states import VisibleXids


def precedes(version: TableSchema, files: Iterable[str], visible: VisibleXids) -> bool:
    """Whether a schema version, and all its changes in these segments, came before the copy."""
    if version.note is not None and not visible.contains(version.note.xid):
        return False
    return all(_contains(visible, file) for file in files)


def _contains(visible: VisibleXids, file: str) -> bool:
    """Whether the copy has every change of a segment."""
    xids = pq.read_table(file, columns=["xid"])["xid"].unique().to_pylist()
    return all(visible.contains(xid) for xid in xids)


def may_matter(defect: Defect, file: str, visible: VisibleXids | None) -> bool:
    """Whether a defect of this segment may be in a change that the copy lacks.

    The segment has NULL where the value was, so only changes that have NULL
    there count; a NULL that was one from the start cannot be told from it. A value that was
    unsent may be any.
    """
    if visible is None:
        return True
    if defect.unsent:
        return not _contains(visible, file)
    present = pq.read_schema(file).names
    columns = ["xid", *(side for side in ("before", "after") if side in present)]
    rows = pq.read_table(file, columns=columns)
    suspicious = pa.array([False] * rows.num_rows)
    for side in columns[1:]:
        values = rows[side].combine_chunks()
        place = values.type.get_field_index(defect.column)  # a name may read like a path
        if place >= 0:
            missing = pc.and_(pc.is_valid(values), pc.is_null(pc.struct_field(values, [place])))
            suspicious = pc.or_(suspicious, missing)
    xids = rows["xid"].filter(suspicious).unique().to_pylist()
    return any(not visible.contains(xid) for xid in xids)
