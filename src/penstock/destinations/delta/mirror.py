"""Ways to bring a batch's net effect into a Delta table, each in one commit.

From cheap to dear: append, where an exact mirror cannot have any of the keys;
replace rows by a list of keys, where there are few; MERGE. A truncated table is
overwritten with what the batch has left of it.

Small batches are about latency: every Spark job saved counts, so they are reduced
by one task and never cached. Large ones are about work: their reduction is
computed once and kept, and the statistics choose between deletion vectors (few
rows in many files) and rewriting (many rows).

What is broadcast is collected on the driver first, and a table's values can be larger
than that: keys and hashes are broadcast, never rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.destinations.delta import statements
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.manifest import ChangeCounts
from penstock.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.changes.batches import ChangeBatch
    from penstock.spark.net_effect import NetEffect

LISTED_KEYS = 1000
"""Up to so many key values are written into a statement."""

SMALL_MERGE = 20_000
"""Up to so many changes, deletion vectors are the better way whatever the table's size."""

_ONE_FILE_ROWS = 200_000
_REWRITE_SHARE = 0.2
_SOURCE = "penstock_source"
_FILE_FACTOR = "spark.sql.sources.fileCompressionFactor"


@dataclass(frozen=True)
class Mirror:
    """The Delta table at `path`, and a batch that is to go there."""

    path: str
    batch: ChangeBatch

    @property
    def session(self) -> SparkSession:
        return self.batch.session

    @property
    def table(self) -> TableSchema:
        return self.batch.table

    @property
    def counts(self) -> ChangeCounts:
        return self.batch.counts

    def apply(self) -> None:
        # Planning anew after each stage makes a job of each: only large batches repay it.
        self.session.conf.set("spark.sql.adaptive.enabled", "false" if self._small else "true")
        self.session.conf.unset(_FILE_FACTOR)
        effect = self.batch.net_effect()
        if effect.truncated:
            rows = effect.rows
            if effect.may_miss:
                # Nothing is left to take a value from that was not resent.
                rows = self._filled(rows, self._own_rows("false"))
            self._write(_upserted(effect, rows), "overwrite")
        elif effect.only_new:
            self._write(_upserted(effect), "append")
        elif not effect.keyed:
            self._apply_tally(effect)
        elif self._listable:
            self._apply_small(effect)
        else:
            self._apply_large(effect)

    @property
    def _small(self) -> bool:
        return self.counts.total <= SMALL_MERGE

    def _write(self, rows: DataFrame, mode: str, **options: str) -> None:
        if self.counts.total <= _ONE_FILE_ROWS:
            rows = rows.coalesce(1)
        rows.write.format("delta").mode(mode).options(**options).save(self.path)

    # Small batches.

    @property
    def _listable(self) -> bool:
        key = self.table.key
        return 2 * self.counts.total * len(key) <= LISTED_KEYS and statements.can_list(key)

    def _apply_small(self, effect: NetEffect) -> None:
        """Replace the rows of a list of keys."""
        from pyspark.sql import functions as F  # noqa: N812

        rows = effect.rows
        origin = F.when(F.size("missing") > 0, F.col("origin")) if effect.may_miss else F.lit(None)
        found = rows.select("key", "new", origin).collect()
        origins = [origin for _, _, origin in found if origin is not None]
        if origins:
            own = self._own_rows(statements.key_list(self.table.key, origins))
            # To the one task that reduces the batch.
            rows = self._filled(rows, own.repartition(1))
        upserted = _upserted(effect, rows)
        if all(new for _, new, _ in found):
            self._write(upserted, "append")
            return
        # New keys are on the list too: the predicate must cover what is written.
        keys = statements.key_list(self.table.key, [key for key, _, _ in found])
        self._write(upserted, "overwrite", replaceWhere=keys)

    # Large batches.

    def _apply_large(self, effect: NetEffect) -> None:
        # Computed once and kept apart from Spark's cache: MERGE refuses a source that
        # is cached there when it is told not to make a copy of its own.
        rows = effect.rows.localCheckpoint()
        if self._all_new(rows):
            self._write(_upserted(effect, rows), "append")
        else:
            self._merge(effect, rows)

    def _all_new(self, rows: DataFrame) -> bool:
        return self.counts.inserts > 0 and rows.where("NOT new").isEmpty()

    def _merge(self, effect: NetEffect, rows: DataFrame) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        if effect.may_miss and any(segment.key_changes for segment in self.batch.segments):
            rows = self._with_moved_values(rows)
        columns = [
            F.col(f"key.{statements.quoted(c.name)}").alias(f"k{n}")
            for n, c in enumerate(self.table.key)
        ]
        columns += [F.col("deleted"), *_flat(self.table)]
        if effect.may_miss:
            columns += [F.col("missing")]
        rows.where("NOT (new AND deleted)").select(*columns).createOrReplaceTempView(_SOURCE)
        self._choose_vectors()
        merge = statements.merge(self.table, self.path, _SOURCE, self._key_range(), effect.may_miss)
        # The source is computed once already, and the same each time it is asked for.
        self._run(merge, materialize="none")

    def _run(self, merge: str, materialize: str) -> None:
        self.session.conf.set("spark.databricks.delta.merge.materializeSource", materialize)
        # Files are many times smaller than their values can be in memory, and Spark broadcasts
        # a table whose files are small. The source's size has been judged before.
        self.session.conf.set(_FILE_FACTOR, "1000")
        try:
            self.session.sql(merge)
        finally:
            # The session lives as long as the table, and with the view the batch would stay.
            self.session.catalog.dropTempView(_SOURCE)

    def _choose_vectors(self) -> None:
        """Mark rows as deleted, or rewrite their files where a good part of them would be."""
        rewrite = False
        if not self._small:
            detail = self.session.sql(f"DESCRIBE DETAIL {statements.table_at(self.path)}")
            size = detail.select("sizeInBytes").head()
            touched = sum(segment.bytes for segment in self.batch.segments)
            rewrite = size is not None and touched > _REWRITE_SHARE * size[0]
        self.session.conf.set(
            "spark.databricks.delta.merge.deletionVectors.persistent",
            "false" if rewrite else "true",
        )

    def _key_range(self) -> tuple[int, int] | None:
        bounds = [(segment.key_min, segment.key_max) for segment in self.batch.segments]
        known = [(low, high) for low, high in bounds if low is not None and high is not None]
        if not known or len(known) < len(bounds):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    # Values that Postgres did not resend.

    def _own_rows(self, where: str = "true") -> DataFrame:
        """The mirror's rows by their keys, apart from each other's names."""
        from pyspark.sql import functions as F  # noqa: N812

        key = F.struct(*[F.col(statements.quoted(c.name)) for c in self.table.key])
        own = self.session.read.format("delta").load(self.path).where(where)
        return own.select(key.alias("own_key"), F.struct("*").alias("own"))

    def _with_moved_values(self, rows: DataFrame) -> DataFrame:
        """Fill in what is missing in rows that stand under another key in the mirror.

        In the others MERGE keeps what is there.
        """
        from pyspark.sql import functions as F  # noqa: N812

        moved = (F.size("missing") > 0) & ~F.col("origin").eqNullSafe(F.col("key"))
        wanted = self._light(rows.where(moved).select("origin"))
        # Of a semi join the left side is not broadcast, whatever its size is taken for.
        same = F.col("own_key").eqNullSafe(F.col("origin"))
        own = self._own_rows().join(wanted, same, "left_semi")
        filled = self._filled(rows.where(moved), own).localCheckpoint()
        return rows.where(~moved).select(filled.columns).unionByName(filled)

    def _filled(self, rows: DataFrame, own: DataFrame) -> DataFrame:
        """Fill in what is missing from the mirror's own rows, each under its origin's key."""
        from pyspark.sql import functions as F  # noqa: N812

        same = F.col("origin").eqNullSafe(F.col("own_key"))
        joined = rows.join(own.hint("merge"), same, "left")
        incomplete = F.size("missing") > 0
        lost = F.raise_error(
            F.concat(F.lit(statements.LOST_VALUE), F.lit(" "), F.concat_ws(", ", "missing"))
        )
        fields: list[Column] = []
        for column in self.table.columns:
            name = statements.quoted(column.name)
            kept = F.when(F.col("own").isNull(), lost).otherwise(F.col(f"own.{name}"))
            unsent = F.array_contains("missing", column.name)
            fields.append(F.when(unsent, kept).otherwise(F.col(f"row.{name}")).alias(column.name))
        filled = F.when(incomplete, F.struct(*fields)).otherwise(F.col("row"))
        return joined.select(
            "key",
            "deleted",
            "new",
            filled.alias("row"),
            F.array().cast("array<string>").alias("missing"),
        )

    def _light(self, wanted: DataFrame) -> DataFrame:
        """Keys or hashes to look for: they go to where the table is read, where they are few."""
        from pyspark.sql import functions as F  # noqa: N812

        return F.broadcast(wanted) if self._small else wanted

    # Tables without a key.

    def _apply_tally(self, effect: NetEffect) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        rows = effect.rows.persist()
        try:
            shrunk = rows.where("change < 0")
            if shrunk.isEmpty():
                self._write(_repeated(rows.select("row", "change")), "append")
                return
            left = self._left_of(shrunk)
            found, fewest = left.agg(F.count("*"), F.min("change")).head() or (0, None)
            lacking = found < shrunk.count() or (fewest is not None and fewest < 0)
            if lacking and self.batch.copied_all:
                raise PenstockError(
                    ErrorKind.DESTINATION_REJECTED,
                    "the table lacks rows that the source deleted",
                    hint="copy the table again: `penstock resync` it",
                    table=self.table.name,
                    position=self.batch.end,
                )
            gone = shrunk.select(F.lit(True).alias("gone"), *_flat(self.table))
            come = _repeated(left.unionByName(rows.where("change > 0")), flat=self.table)
            gone.unionByName(come.withColumn("gone", F.lit(False))).createOrReplaceTempView(_SOURCE)
            merge = statements.merge_counts(self.table, self.path, _SOURCE)
            self._run(merge, materialize="auto")
        finally:
            rows.unpersist()

    def _left_of(self, shrunk: DataFrame) -> DataFrame:
        """How many of the rows are left in the mirror that become fewer."""
        from pyspark.sql import functions as F  # noqa: N812

        from penstock.spark.net_effect import signs

        names = [statements.quoted(column.name) for column in self.table.columns]
        wanted = shrunk.select(
            F.xxhash64(*[F.col(f"row.{name}") for name in names]).alias("wanted_hash"),
            F.col("row").alias("wanted"),
            "change",
        )
        own = self.session.read.format("delta").load(self.path)
        own = own.select(F.xxhash64(*names).alias("own_hash"), F.struct(*names).alias("own"))
        # Most of the mirror is told apart by hashes alone, where it is read.
        same_hash = F.col("own_hash") == F.col("wanted_hash")
        near = own.join(self._light(wanted.select("wanted_hash")), same_hash, "left_semi")
        if self._small:
            near = near.repartition(1)
        own_signs, wanted_signs = signs(self.table, "own"), signs(self.table, "wanted")
        same = F.col("own").eqNullSafe(F.col("wanted")) & own_signs.eqNullSafe(wanted_signs)
        return (
            near.join(wanted.hint("merge"), same_hash & same)
            .groupBy(F.col("wanted").alias("same"), wanted_signs.alias("signs"), "change")
            .agg(F.first("wanted").alias("row"), F.count("*").alias("there"))
            .select("row", (F.col("there") + F.col("change")).alias("change"))
        )


def _upserted(effect: NetEffect, rows: DataFrame | None = None) -> DataFrame:
    """The rows that the batch leaves, with the table's own columns."""
    rows = effect.rows if rows is None else rows
    if not effect.keyed:
        # After a truncate, or of inserts alone: nothing can be fewer than before.
        return rows.select("row.*") if effect.only_new else _repeated(rows)
    return rows.select("row.*") if effect.only_new else rows.where("NOT deleted").select("row.*")


def _flat(table: TableSchema) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    return [
        F.col(f"row.{statements.quoted(c.name)}").alias(f"c{n}")
        for n, c in enumerate(table.columns)
    ]


def _repeated(rows: DataFrame, flat: TableSchema | None = None) -> DataFrame:
    """Each row as often as `change` says."""
    from pyspark.sql import functions as F  # noqa: N812

    times = F.explode(F.array_repeat(F.lit(0), F.col("change").cast("int"))).alias("time")
    repeated = rows.where("change > 0").select("row", times)
    return repeated.select(*_flat(flat)) if flat else repeated.select("row.*")
