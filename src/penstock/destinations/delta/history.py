"""A history: every change of a table, appended with its envelope.

What a history holds cannot be had again, so another copy of its table takes nothing away.
The copy's rows are appended too, as changes whose `op` is `r`, for read. They stand where
they were read: behind the last change that was there before the copy (`commit_lsn` is the
end of that batch, and `tx_ordinal` is -1, in front of a transaction that begins there).
The changes that come then go on from that place, without those that the copy shows.

A copy that no batch has followed is replaced by the next one: it may be the rest of an
attempt that died between Delta's commit and ours, and nothing has been built on it.

A column has one type in a history, which may widen. What else the source makes of it stops
the table: see `require_fit`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.changes.batches import TableRows
from penstock.destinations.delta import statements
from penstock.destinations.delta.alteration import widens
from penstock.destinations.delta.mark import Mark
from penstock.destinations.delta.statements import quoted
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.types import spark_type
from penstock.schema import ColumnSchema, Lsn, TableSchema, ValueKind, ValueType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SIDES = ("before", "after")
_PLAIN = {
    spark_type(ValueType(kind)): ValueType(kind)
    for kind in (ValueKind.SHORT, ValueKind.INTEGER, ValueKind.FLOAT, ValueKind.DATE)
}


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where in a history a copy goes: behind `behind`, or alone where that is None.

    `instead` is the place of a copy that it replaces.
    """

    mark: Mark
    behind: Lsn | None
    instead: Lsn | None = None


def copy_place(path: str, rows: TableRows, newest: Mark | None, mark: Mark) -> CopyPlace:
    """Where the next copy goes, after what `newest` marks."""
    if newest is None:
        return CopyPlace(mark, None)
    if newest.position is None:  # a copy that no batch has followed
        behind = newest.copied_behind
        mark = replace(mark, copied_behind=behind, went_on=newest.went_on)
        return CopyPlace(mark, behind, instead=behind)
    if rows.position is not None and newest.position > rows.position:
        raise PenstockError(
            ErrorKind.DESTINATION_REJECTED,
            f"the history at {path} goes up to {newest.position}, but the source was at"
            f" {rows.position} when it was copied: it was restored, or is another one",
            hint=_begin_another(path),
            table=rows.table.name,
        )
    same = (newest.pipeline_id, newest.table_id) == (mark.pipeline_id, mark.table_id)
    mark = replace(mark, copied_behind=newest.position, went_on=same)
    return CopyPlace(mark, newest.position)


def write_copy(rows: TableRows, path: str, place: CopyPlace) -> None:
    """Put the copied rows at their place, in one commit."""
    session = rows.session
    place.mark.sign(session)
    frame = _as_history(rows.table, rows.dataframe, place.behind)
    if place.behind is None:
        frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
        return
    writer = frame.write.format("delta").option("mergeSchema", "true")
    if place.instead is None:
        writer.mode("append").save(path)
        return
    unsettled = f"op = 'r' AND commit_lsn = {place.instead.value}"
    # Rows of the same place are written, which is what the predicate asks for.
    writer.mode("overwrite").option("replaceWhere", unsettled).save(path)


def _as_history(table: TableSchema, rows: DataFrame, behind: Lsn | None) -> DataFrame:
    """Copied rows as changes."""
    from pyspark.sql import functions as F  # noqa: N812

    from penstock.spark.frames import envelope_schema

    given = {
        "op": F.lit("r"),
        "commit_lsn": F.lit(behind.value if behind else 0),
        "tx_ordinal": F.lit(-1 if behind else 0),
        "after": F.struct("*"),
    }
    return rows.select(
        *[
            given.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in envelope_schema(table).fields
        ]
    )


def require_fit(session: SparkSession, table: TableSchema, path: str) -> list[ColumnSchema]:
    """The columns whose types the history at `path` has to widen for this table.

    Raises where it has a column of another type: one column cannot hold both.
    """
    found_schema = session.read.format("delta").load(path).schema
    if not {"op", "commit_lsn", *_SIDES} <= set(found_schema.names):
        raise PenstockError(
            ErrorKind.DESTINATION_SCHEMA,
            f"what is at {path} is a table, and no history of one",
            hint=f'go on with mode="mirror", or {_begin_another(path)}',
            table=table.name,
        )
    after = found_schema["after"].dataType
    there = {field.name.lower(): field.dataType.simpleString() for field in after.fields}  # type: ignore[attr-defined]
    wider = []
    for column in table.columns:
        wanted = spark_type(column.type)
        found = there.get(column.name.lower(), wanted)
        if found == wanted:
            continue
        known = _value_type(found)
        if known is None or not widens(known, column.type):
            raise PenstockError(
                ErrorKind.DESTINATION_SCHEMA,
                f"column {column.name} is {found} in the history at {path}, and {wanted} at the"
                " source: a history cannot hold both, and is never converted",
                hint=f"give the column its type back, or let column_types carry it as {found}, and"
                f" `penstock resync` the table (what is there stays); or {_begin_another(path)}",
                table=table.name,
            )
        wider.append(column)
    return wider


def widen(session: SparkSession, path: str, columns: list[ColumnSchema]) -> None:
    """Give columns of `before` and `after` their wider types; touches no file."""
    at = statements.table_at(path)
    for column in columns:
        for side in _SIDES:
            name = f"{quoted(side)}.{quoted(column.name)}"
            session.sql(f"ALTER TABLE {at} ALTER COLUMN {name} TYPE {spark_type(column.type)}")


def _value_type(simple: str) -> ValueType | None:
    if simple.startswith("decimal("):
        precision, scale = map(int, simple[len("decimal(") : -1].split(","))
        return ValueType(ValueKind.DECIMAL, precision, scale)
    return _PLAIN.get(simple)


def _begin_another(path: str) -> str:
    return f"move {path} away and `penstock resync` the table, which begins another history"
