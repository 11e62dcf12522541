"""A table's first commit, written by us, over Parquet files that are in place.

CONVERT TO DELTA does this too, but reads the files again to gather statistics, or
gathers none, and takes five Spark jobs either way: more time than the rest of a
copy of a million rows. The first commit of a Delta log is a small file of the open
protocol (protocol, metadata, one entry for each file), and the statistics stand in
the Parquet footers. Every later commit is Delta's.

Statistics are kept where the protocol's form of them is beyond doubt: integers,
dates and short ASCII strings. A column without any is legal and prunes nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock.destinations.delta.mark import Mark
from penstock.journal.files import create_exclusively, sync
from penstock.schema import TableSchema, ValueKind, ValueType

_INDEXED_COLUMNS = 32
_LONGEST_TEXT = 64
_ORDERED = frozenset(
    {ValueKind.SHORT, ValueKind.INTEGER, ValueKind.LONG, ValueKind.DATE, ValueKind.STRING}
)


def write_first_commit(
    directory: Path,
    files: Sequence[Path],
    table: TableSchema,
    schema: str,
    mark: Mark,
    properties: Mapping[str, str],
) -> None:
    """Make Parquet files in `directory` a Delta table whose rows have `schema` (JSON).

    Fails if there is a table already; until the end there is none.
    """
    now = int(time.time() * 1000)
    actions: list[dict[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": now,
                "operation": "CONVERT",
                "operationParameters": {"numFiles": str(len(files))},
                "isBlindAppend": True,
                "userMetadata": mark.dumps(),
                "engineInfo": "penstock",
                "txnId": str(uuid.uuid4()),
            }
        },
        {"protocol": _protocol(table, properties)},
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": [],
                "configuration": dict(properties),
                "createdTime": now,
            }
        },
        *({"add": _file(path, table)} for path in files),
    ]
    log = directory / "_delta_log"
    log.mkdir(exist_ok=True)
    text = "".join(json.dumps(action) + "\n" for action in actions)
    sync(directory)
    # Exclusively: a commit that stands there already is somebody's table.
    create_exclusively(log / f"{0:020}.json", text)


def _protocol(table: TableSchema, properties: Mapping[str, str]) -> dict[str, Any]:
    both = []
    if properties.get("delta.enableDeletionVectors") == "true":
        both.append("deletionVectors")
    if has_local_times(table):
        both.append("timestampNtz")
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": both,
        "writerFeatures": ["appendOnly", "invariants", *both],
    }


def has_local_times(table: TableSchema) -> bool:
    """Whether a column is a timestamp without time zone, which is a feature of its own."""
    return any(_leaf(column.type).kind is ValueKind.TIMESTAMP_NTZ for column in table.columns)


def _leaf(type: ValueType) -> ValueType:  # noqa: A002
    return _leaf(type.element) if type.element else type


def _file(path: Path, table: TableSchema) -> dict[str, Any]:
    status = path.stat()
    return {
        "path": path.name,
        "partitionValues": {},
        "size": status.st_size,
        "modificationTime": int(status.st_mtime * 1000),
        "dataChange": True,
        "stats": json.dumps(_statistics(pq.read_metadata(path), table)),
    }


def _statistics(footer: Any, table: TableSchema) -> dict[str, Any]:
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    places = {footer.schema.column(n).path: n for n in range(len(footer.schema))}
    for column in table.columns[:_INDEXED_COLUMNS]:
        place = places.get(column.name)  # none for arrays, whose path goes deeper
        if place is None:
            continue
        found = [group.column(place).statistics for group in groups]
        if not all(s is not None and s.has_null_count for s in found):
            continue
        nulls[column.name] = sum(s.null_count for s in found)
        filled = [s for s in found if s.num_values > 0]
        if filled and column.type.kind in _ORDERED and all(s.has_min_max for s in filled):
            bounds = _bounds((s.min for s in filled), (s.max for s in filled))
            if bounds is not None:
                minima[column.name], maxima[column.name] = bounds
    return {
        "numRecords": footer.num_rows,
        "minValues": minima,
        "maxValues": maxima,
        "nullCount": nulls,
        "tightBounds": True,
    }


def _bounds(minima: Iterable[Any], maxima: Iterable[Any]) -> tuple[Any, Any] | None:
    """The outermost of several groups' bounds, as the protocol writes them."""
    low, high = min(minima), max(maxima)
    if isinstance(low, str):
        # Long ones would swell the log; beyond ASCII, orders differ between systems.
        if not all(text.isascii() and len(text) <= _LONGEST_TEXT for text in (low, high)):
            return None
    elif isinstance(low, date):
        return low.isoformat(), high.isoformat()
    return low, high
