"""Where a value stands that Postgres did not send with a row.

Walking a key's steps in order, a column's value is known from the last step that
had it, unless the key ended or a row moved in since: then it is not this row's
value. What is still missing belongs to the mirror's row, under the key that the
row had before the batch, its *origin*.

A row that moved in has its earlier steps under its old key, before the move; what
they do not know either may lead to another move before that. Such a trail is
followed one move at a time, for all rows at once; most batches have none.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.schema import TableSchema
from penstock.spark.frames import quoted
from penstock.spark.net_effect import ORDER, key_columns, toastable, unsent_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def follow_trails(table: TableSchema, steps: DataFrame, moves: bool) -> DataFrame:
    """The last step of every key, with `first`, `row` filled in, `missing` and `origin`."""
    states = _states(table, steps, moves)
    heads = states.where("last")
    if moves:
        heads = _follow_moves(table, heads, states)
    keys = zip(key_columns(table), table.key, strict=True)
    own = F.struct(*[F.col(k).alias(column.name) for k, column in keys])
    origin = F.coalesce(F.col("trail.key"), own) if moves else own
    return heads.withColumn("origin", origin)


def _states(table: TableSchema, steps: DataFrame, moves: bool) -> DataFrame:
    """Each step with the row as it stood after it, as far as this key's steps can tell."""
    order = Window.partitionBy(*key_columns(table)).orderBy(*ORDER)
    so_far = order.rowsBetween(Window.unboundedPreceding, 0)
    key_names = {column.name for column in table.key}
    carried = {c.name: n for n, c in enumerate(toastable(table)) if c.name not in key_names}
    begins_or_ends = F.col("kind").isin("m", "d")
    seen = []
    for name, number in carried.items():
        value = F.struct(F.lit(True).alias("known"), F.col(f"row.{quoted(name)}").alias("value"))
        nothing = F.struct(F.lit(False).alias("known"), F.lit(None).alias("value"))
        here = F.when((F.col("kind") != "d") & ~unsent_column(name), value).when(
            begins_or_ends, nothing
        )
        seen.append(F.last(here, ignorenulls=True).over(so_far).alias(f"v{number}"))
    if moves:
        # Where the row that stands here came from; an insert or an end cuts the trail.
        came = F.struct(
            F.struct(*[F.col(f"before.{quoted(c.name)}").alias(c.name) for c in table.key]).alias(
                "key"
            ),
            *ORDER[:2],
        )
        cut = F.struct(F.lit(None).alias("key"), *ORDER[:2])
        here = F.when(F.col("kind") == "m", came).when(F.col("kind").isin("i", "d"), cut)
        seen.append(F.last(here, ignorenulls=True).over(so_far).alias("trail"))
    states = steps.select(
        *key_columns(table),
        *ORDER,
        "kind",
        "row",
        F.first("kind").over(so_far).alias("first"),
        F.lead("kind").over(order).isNull().alias("last"),
        *seen,
    )
    fields = [
        (
            F.col(f"v{carried[column.name]}.value")
            if column.name in carried
            else F.col(f"row.{quoted(column.name)}")
        ).alias(column.name)
        for column in table.columns
    ]
    unknown = [
        F.when(~F.coalesce(F.col(f"v{number}.known"), F.lit(False)), F.lit(name))
        for name, number in carried.items()
    ]
    missing = F.array_compact(F.array(*unknown)) if unknown else F.array().cast("array<string>")
    alive = F.col("kind") != "d"
    return states.select(
        *key_columns(table),
        *ORDER,
        "kind",
        F.when(alive, F.struct(*fields)).alias("row"),
        "first",
        "last",
        F.when(alive, missing).otherwise(F.array().cast("array<string>")).alias("missing"),
        *([F.col("trail")] if moves else []),
    )


def _follow_moves(table: TableSchema, heads: DataFrame, states: DataFrame) -> DataFrame:
    """Go from move to move until no head has a trail that leads on within the batch."""
    states, heads = states.persist(), heads.localCheckpoint()
    leads_on = "size(missing) > 0 AND trail.key IS NOT NULL AND NOT done"
    heads = heads.withColumn("done", F.lit(False))
    while not heads.where(leads_on).isEmpty():
        heads = _one_move(table, heads, states, leads_on).localCheckpoint()
    states.unpersist()
    return heads


def _one_move(table: TableSchema, heads: DataFrame, states: DataFrame, leads_on: str) -> DataFrame:
    keys = key_columns(table)
    earlier = states.where("kind != 'd'").select(
        *[F.col(k).alias(f"e_{k}") for k in keys],
        F.struct("commit_lsn", "tx_ordinal").alias("e_place"),
        F.struct("row", "missing", "trail").alias("e_state"),
    )
    head, place = F.struct("trail.commit_lsn", "trail.tx_ordinal"), F.col("e_place")
    matches = [
        F.col(f"trail.key.{quoted(c.name)}").eqNullSafe(F.col(f"e_{k}"))
        for k, c in zip(keys, table.key, strict=True)
    ]
    same_key = reduce(lambda one, other: one & other, matches)
    walking, resting = heads.where(leads_on), heads.where(f"NOT ({leads_on})")
    found = (
        walking.join(earlier, same_key & (place < head), "left")
        .groupBy(*keys)
        .agg(
            F.max_by("e_state", "e_place").alias("e"),
            *[F.first(name).alias(name) for name in heads.columns if name not in keys],
        )
    )
    went_on = F.col("e").isNotNull()
    still = F.array_intersect("missing", "e.missing")
    # The step found is the row's own under that key; without a trail of its own
    # it is the mirror's row, changed in place, and this key is the origin.
    trail = F.when(F.col("e.trail.key").isNotNull(), F.col("e.trail")).otherwise(F.col("trail"))
    on = F.when(went_on & F.col("e.trail.key").isNotNull(), F.lit(False)).otherwise(F.lit(True))
    walked = found.select(
        *[
            {
                "row": F.when(went_on, _filled(table)).otherwise(F.col("row")),
                "missing": F.when(went_on, still).otherwise(F.col("missing")),
                "trail": F.when(went_on, trail).otherwise(F.col("trail")),
                "done": on,
            }.get(name, F.col(name)).alias(name)
            for name in heads.columns
        ]
    )
    return resting.unionByName(walked)


def _filled(table: TableSchema) -> Column:
    return F.struct(
        *[
            F.when(F.array_contains("missing", column.name), F.col(f"e.row.{quoted(column.name)}"))
            .otherwise(F.col(f"row.{quoted(column.name)}"))
            .alias(column.name)
            for column in table.columns
        ]
    )
