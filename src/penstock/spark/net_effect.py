"""What a batch of changes does to a mirror: one row per key.

Every change is about one key, except an update that changes the key: that is
two, the old key's end and the new key's begin. So a batch becomes a list of
*steps*, each with its key, its place in the order and its kind:

    i  insert: the key begins, with a whole row
    m  moved in: the key begins, with the row that stood under another key
    u  update in place
    d  delete, or moved out: the key ends

Of each key's steps only the last counts, and the first tells whether a mirror
that is exact can have the key at all: not when it begins with `i` or `m`. One
shuffle and one sort bring a key's steps together in their order. A batch of
inserts alone needs not even that.

The hard part is a value that Postgres did not resend (unchanged TOAST). Where the old
row has come whole the receiver has taken it from there. Otherwise it is the value of the
same row's step before, in this batch, or else the mirror's own. "The same row" may
have had another key then: after a move the trail leads to the steps of the old
key before the move, and from there possibly further (`trails`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.errors import ErrorKind, PenstockError, UnsentValue
from penstock.journal.manifest import ChangeCounts
from penstock.schema import ColumnSchema, ReplicaIdentity, TableSchema, ValueKind
from penstock.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.changes.batches import ChangeBatch

SMALL_BATCH = 20_000
"""So many changes are reduced by one task, sooner than a shuffle would be planned."""

# Kinds whose values can be large enough for Postgres to store them out of line. A double
# can be a numeric that the user wants to have so.
_TOASTABLE = frozenset({ValueKind.STRING, ValueKind.BINARY, ValueKind.ARRAY, ValueKind.DECIMAL})
_FLOAT8_OID = 701


@dataclass(frozen=True)
class NetEffect:
    """`truncated` first, then `rows`, in any order.

    For a table with a key, one row per key that the batch touched:

    | column    | type          |                                                      |
    | --------- | ------------- | ---------------------------------------------------- |
    | `key`     | struct        | the key's columns                                    |
    | `deleted` | boolean       | delete the key, or set it to `row`                   |
    | `new`     | boolean       | the batch begins the key: the mirror lacks it        |
    | `row`     | struct        | the whole new row, NULL when deleted                 |
    | `missing` | array<string> | columns of `row` that are not set: keep what is there |
    | `origin`  | struct        | the key under which that is, before the batch        |

    `missing` and `origin` are there only when `may_miss`. A key that is both
    new and deleted came and went within the batch. Of a mirror that is not exact,
    because the publication leaves deletes out, say, nothing is known to be new.

    For a table without a key (`REPLICA IDENTITY FULL`), one row per distinct
    row: `row`, and in `change` by how many its number grows or shrinks.

    `only_new` is true when statistics alone tell that all rows are new and none
    is deleted; false means that one has to look.
    """

    table: TableSchema
    truncated: bool
    rows: DataFrame
    only_new: bool
    may_miss: bool
    counts: ChangeCounts

    @property
    def keyed(self) -> bool:
        return bool(self.table.key)


def net_effect(batch: ChangeBatch) -> NetEffect:
    """Reduce `batch`; costs a Spark job only where the batch may hold a truncate."""
    table, counts = batch.table, batch.counts
    changes = batch.changes
    truncated = False
    if counts.truncates:
        truncated, changes = _after_truncate(changes)
    unsent = any(segment.has_unchanged for segment in batch.segments)
    only_new = not (counts.updates or counts.deletes or unsent)
    if only_new and (batch.publishes_all or not table.key):
        return NetEffect(table, truncated, _inserted(table, changes), True, False, counts)
    if counts.total <= SMALL_BATCH:
        changes = changes.coalesce(1)
    if table.key:
        moves = any(segment.key_changes for segment in batch.segments)
        effect = _keyed(table, changes, counts, truncated, unsent, moves)
        return effect if batch.publishes_all else replace(effect, rows=_maybe_there(effect.rows))
    if table.identity is not ReplicaIdentity.FULL:
        raise PenstockError(
            ErrorKind.SOURCE_SCHEMA,
            "the table has no key, so its updates and deletes cannot be matched to rows",
            hint=f"ALTER TABLE {table.name.quoted} ADD PRIMARY KEY (...), or "
            f"ALTER TABLE {table.name.quoted} REPLICA IDENTITY FULL",
            table=table.name,
            position=batch.end,
        )
    return NetEffect(table, truncated, _tallied(table, changes), False, False, counts)


def _after_truncate(changes: DataFrame) -> tuple[bool, DataFrame]:
    """What comes after the last truncate; only that counts."""
    last = (
        changes.where("op = 't'")
        .select("commit_lsn", "tx_ordinal")
        .orderBy(F.desc("commit_lsn"), F.desc("tx_ordinal"))
        .head()
    )
    changes = changes.where("op != 't'")
    if last is None:  # the copy's snapshot had seen them
        return False, changes
    lsn, ordinal = last
    after = f"commit_lsn > {lsn}L OR (commit_lsn = {lsn}L AND tx_ordinal > {ordinal}L)"
    return True, changes.where(after)


def _inserted(table: TableSchema, changes: DataFrame) -> DataFrame:
    row = F.col("after").alias("row")
    if not table.key:
        return changes.select(row, F.lit(1).cast("long").alias("change"))
    return changes.select(
        F.struct(*[F.col(f"after.{quoted(c.name)}").alias(c.name) for c in table.key]).alias("key"),
        F.lit(False).alias("deleted"),
        F.lit(True).alias("new"),
        row,
    )


def _maybe_there(rows: DataFrame) -> DataFrame:
    return rows.withColumn("new", F.lit(False))


def _keyed(
    table: TableSchema,
    changes: DataFrame,
    counts: ChangeCounts,
    truncated: bool,
    unsent: bool,
    moves: bool,
) -> NetEffect:
    """`unsent`: values may be missing; `moves`: keys may change."""
    steps = _steps(table, changes, unsent, moves)
    if unsent:
        from penstock.spark.trails import follow_trails

        steps = follow_trails(table, steps, moves)
        extra = [F.col("missing"), F.col("origin")]
    else:
        order = Window.partitionBy(*key_columns(table)).orderBy(*ORDER)
        steps = steps.select(
            *key_columns(table),
            "kind",
            "row",
            F.first("kind").over(order.rowsBetween(Window.unboundedPreceding, 0)).alias("first"),
            F.lead("kind").over(order).isNull().alias("last"),
        ).where("last")
        extra = []
    key = F.struct(
        *[F.col(f"k{n}").alias(column.name) for n, column in enumerate(table.key)]
    ).alias("key")
    rows = steps.select(
        key,
        (F.col("kind") == "d").alias("deleted"),
        F.col("first").isin("i", "m").alias("new"),
        F.when(F.col("kind") != "d", F.col("row")).alias("row"),
        *extra,
    )
    return NetEffect(table, truncated, rows, False, unsent, counts)


ORDER = ("commit_lsn", "tx_ordinal", "part")
"""A move's first part ends the old key, its second begins the new one."""


def key_columns(table: TableSchema) -> list[str]:
    """A step's key, column by column: sorting and hashing are quicker than on a struct."""
    return [f"k{n}" for n in range(len(table.key))]


def toastable(table: TableSchema) -> list[ColumnSchema]:
    """The columns whose values Postgres may leave out of an update."""
    return [column for column in table.columns if _is_toastable(column)]


def _is_toastable(column: ColumnSchema) -> bool:
    overridden = column.type.kind is ValueKind.DOUBLE and column.type_oid != _FLOAT8_OID
    return overridden or column.type.kind in _TOASTABLE


def unsent_column(name: str) -> Column:
    return F.coalesce(F.array_contains("unchanged", name), F.lit(False))


def _steps(table: TableSchema, changes: DataFrame, unsent: bool, moves: bool) -> DataFrame:
    """`k0`, `k1`, ..., the place in the order, `kind`, `row`, and for moves the old key."""

    def new_key(column: ColumnSchema) -> Column:
        value = F.col(f"after.{quoted(column.name)}")
        if unsent and _is_toastable(column):
            # A key stored out of line comes as the old key when it has not changed.
            old = F.col(f"before.{quoted(column.name)}")
            value = F.when(unsent_column(column.name), old).otherwise(value)
        return value

    old_keys = [F.col(f"before.{quoted(column.name)}") for column in table.key]
    new_keys = [new_key(column) for column in table.key]
    is_delete = F.col("op") == "d"
    if moves:
        same = F.lit(True)
        for old, new in zip(old_keys, new_keys, strict=True):
            same = same & old.eqNullSafe(new)
        # Not `before IS NOT NULL`: where a file lacks a struct, Spark may say it is there.
        sent = reduce(lambda one, other: one | other, (key.isNotNull() for key in old_keys))
        moved = (F.col("op") == "u") & sent & ~same
        ended = F.array(F.lit(0))
        begun = F.array(F.lit(1))
        both = F.array(F.lit(0), F.lit(1))
        changes = changes.withColumn("moved", moved).withColumn(
            "part", F.explode(F.when(F.col("moved"), both).when(is_delete, ended).otherwise(begun))
        )
        ends = F.col("part") == 0
        kind = F.when(ends, "d").when(F.col("moved"), "m").otherwise(F.col("op"))
    else:
        changes = changes.withColumn("part", F.lit(0))
        ends = is_delete
        kind = F.col("op")
    columns = [
        F.when(ends, old).otherwise(new).alias(f"k{n}")
        for n, (old, new) in enumerate(zip(old_keys, new_keys, strict=True))
    ]
    extra = [F.col("unchanged"), F.col("before")] if unsent and moves else []
    if unsent and not moves:
        extra = [F.col("unchanged")]
    return changes.select(
        *columns, *ORDER, kind.alias("kind"), _row(table, unsent).alias("row"), *extra
    )


def _row(table: TableSchema, unsent: bool) -> Column:
    """The new row, with those parts of the key that stand in the old one only."""
    after = F.col("after")
    if not unsent:
        return after
    incomplete = (F.col("op") == "i") & (F.coalesce(F.size("unchanged"), F.lit(0)) > 0)
    lost = F.raise_error(F.concat(F.lit(f"{UnsentValue.MARK} "), F.concat_ws(", ", "unchanged")))
    return F.when(incomplete, lost).otherwise(_with_old_key(table))


def _with_old_key(table: TableSchema) -> Column:
    after = F.col("after")
    names = {column.name for column in toastable(table) if column.key_position is not None}
    if not names:
        return after
    fields = []
    for column in table.columns:
        name = quoted(column.name)
        value = F.col(f"after.{name}")
        if column.name in names:
            old = F.col(f"before.{name}")
            value = F.when(unsent_column(column.name), old).otherwise(value)
        fields.append(value.alias(column.name))
    return F.when(F.col("op") != "d", F.struct(*fields))


def signs(table: TableSchema, row: str) -> Column:
    """What tells rows apart that Spark takes for equal: it makes no difference between the zeros
    of a float, and gives one for the other where it groups by them."""
    floats = [c for c in table.columns if c.type.has_signed_zero]
    texts = [F.col(f"{row}.{quoted(c.name)}").cast("string") for c in floats]
    return F.array(*texts).cast("array<string>")


def _tallied(table: TableSchema, changes: DataFrame) -> DataFrame:
    """How many of each distinct row come or go."""
    gone = F.struct(F.col("before").alias("row"), F.lit(-1).cast("long").alias("change"))
    come = F.struct(F.col("after").alias("row"), F.lit(1).cast("long").alias("change"))
    parts = (
        F.when(F.col("op") == "i", F.array(come))
        .when(F.col("op") == "d", F.array(gone))
        .otherwise(F.array(gone, come))
    )
    return (
        changes.select(F.explode(parts).alias("part"))
        .groupBy(F.col("part.row").alias("same"), signs(table, "part.row").alias("signs"))
        .agg(F.first("part.row").alias("row"), F.sum("part.change").alias("change"))
        .where("change != 0")
        .select("row", "change")
    )
