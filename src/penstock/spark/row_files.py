"""Parquet files of copied rows: of a healthy size, durable, and whole once named.

Files grow in a directory for drafts and get their name in another one of the
same file system when they are complete and on disk. A destination may take them
over as they are, so they are written the way Spark itself would: timestamps in
microseconds, small decimals as integers, statistics for every column, and a
codec that every reader knows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.config import MIB

_ROW_GROUP_BYTES = 64 * MIB
_SAMPLE_ROWS = 8192
_REPETITIVE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class RowFile:
    """A complete file; `name` is relative to the directory it was written for."""

    name: str
    rows: int
    bytes: int


class RowFileWriter:
    """Writes batches to one file after another, none much larger than `max_file_bytes`."""

    def __init__(
        self,
        directory: Path,
        drafts: Path,
        prefix: str,
        schema: pa.Schema,
        *,
        compression: str,
        max_file_bytes: int,
    ) -> None:
        self.files: list[RowFile] = []
        self._directory = directory
        self._drafts = drafts
        self._prefix = prefix
        self._schema = schema
        self._compression = compression
        self._max_file_bytes = max_file_bytes
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._draft: _Draft | None = None
        self._options: dict[str, Any] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch; it is in a file at the latest after `close`."""
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> None:
        """Complete the last file."""
        self._write_row_group()
        self._complete()

    def _write_row_group(self) -> None:
        if not self._gathered:
            return
        rows = pa.Table.from_batches(self._gathered)
        if self._draft is None:
            self._draft = self._open(rows)
        self._draft.write(rows)
        self._gathered, self._gathered_bytes = [], 0
        if self._draft.size >= self._max_file_bytes:
            self._complete()

    def _open(self, rows: pa.Table) -> _Draft:
        if self._options is None:
            self._options = _options(self._compression, rows)
        name = f"{self._prefix}-{len(self.files):05d}.parquet"
        return _Draft(self._drafts / name, self._schema, self._options)

    def _complete(self) -> None:
        if self._draft is None:
            return
        file = self._draft.complete(self._directory)
        self._draft = None
        self.files.append(file)


class _Draft:
    """A file that is not complete yet."""

    def __init__(self, path: Path, schema: pa.Schema, options: dict[str, Any]) -> None:
        self._path = path
        self._rows = 0
        self._file = path.open("wb")
        self._writer = pq.ParquetWriter(self._file, schema, **options)

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows += rows.num_rows

    def complete(self, directory: Path) -> RowFile:
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        # Named only when it is on disk: what a destination commits to must not
        # be lost with the machine's power.
        self._path.rename(directory / self._path.name)
        return RowFile(self._path.name, self._rows, size)


def _options(compression: str, rows: pa.Table) -> dict[str, Any]:
    return {
        "compression": compression,
        "compression_level": 1 if compression == "zstd" else None,
        "store_decimal_as_integer": True,
        "store_schema": False,
        "use_dictionary": _repetitive(rows.slice(0, _SAMPLE_ROWS)),
        "write_statistics": True,
    }


def _repetitive(sample: pa.Table) -> list[str]:
    """Columns that a dictionary makes smaller and quicker to read.

    Trying one on all columns, as Parquet does of its own accord, costs more than
    everything else about writing.
    """
    return [
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        if not (pa.types.is_nested(column.type) or pa.types.is_boolean(column.type))
        and pc.count_distinct(column).as_py() <= _REPETITIVE_SHARE * len(column)
    ]
