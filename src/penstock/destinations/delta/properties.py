"""What a Delta table has to be set to for the columns of a source table."""

from __future__ import annotations

from penstock.errors import ErrorKind, PenstockError
from penstock.schema import TableSchema

# Delta writes a commit a second for a busy table and lists its log for each. A
# month of them, the usual retention, would make that slow.
_LOG_RETENTION = "interval 1 day"
# A checkpoint takes longer than a small batch; replaying a few more commits does not.
_CHECKPOINT_INTERVAL = "30"
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


def require_distinct_names(table: TableSchema) -> None:
    """Refuse columns that differ in case alone: Delta cannot keep them apart."""
    seen: dict[str, str] = {}
    for column in table.columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise PenstockError(
                ErrorKind.DESTINATION_SCHEMA,
                f"columns {other!r} and {column.name!r} differ in case alone, which Delta"
                " does not tell apart",
                hint="leave one out with a column list in the publication, or rename it",
                table=table.name,
            )


def properties_of(table: TableSchema) -> dict[str, str]:
    """What a new table is set to; later on it is the user's to change."""
    return {
        "delta.enableDeletionVectors": "true" if can_have_vectors(table) else "false",
        "delta.logRetentionDuration": _LOG_RETENTION,
        "delta.checkpointInterval": _CHECKPOINT_INTERVAL,
        "delta.columnMapping.mode": "name" if needs_mapping(table) else "none",
    }


def needs_mapping(table: TableSchema) -> bool:
    """Whether a column has a name that Parquet's own names cannot carry in Delta."""
    return any(_NEEDS_MAPPING & set(column.name) for column in table.columns)


def can_have_vectors(table: TableSchema) -> bool:
    """Delta finds the rows to mark through Spark's `_metadata`, which a column may hide."""
    return all(column.name.lower() != "_metadata" for column in table.columns)
