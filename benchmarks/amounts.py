"""Large amounts through the receiver, and a row that is large by itself.

`python -m benchmarks amounts` runs these and those of `idleness`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.delivering import make_pipeline, table_path
from benchmarks.measure import Measure, timed
from benchmarks.receiving import against_recvlogical, memory_over, peak_memory, receiver
from benchmarks.source import Source, fresh_source
from penstock.testing import EmbeddedPostgres

SUBTRANSACTIONS = 200_000
SMALL_TRANSACTIONS = 200_000
HUGE_TRANSACTION = 10_000_000
HUGE_VALUE = 200 * 2**20

_ROW = "g, 1, 2, 0.5, 1.25, 'a row', now(), true"


def _subtransactions(source: Source) -> int:
    """One transaction; each block with an exception handler is a subtransaction."""
    with source.connect() as connection:
        connection.execute(
            f"""
            DO $$ BEGIN
                FOR g IN 1..{SUBTRANSACTIONS} LOOP
                    BEGIN INSERT INTO t VALUES ({_ROW}); EXCEPTION WHEN division_by_zero THEN END;
                END LOOP;
            END $$
            """.encode()
        )
    return SUBTRANSACTIONS


def _small_transactions(source: Source) -> int:
    """As many transactions as rows. They are not waited for: only the stream counts here."""
    with source.connect() as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(
            f"""
            DO $$ BEGIN
                FOR g IN 1..{SMALL_TRANSACTIONS} LOOP
                    INSERT INTO t VALUES ({_ROW});
                    COMMIT;
                END LOOP;
            END $$
            """.encode()
        )
        connection.execute("SET synchronous_commit = on")
        connection.execute("SELECT pg_logical_emit_message(true, 'bench', 'flush')")
    return SMALL_TRANSACTIONS


def subtransactions(server: EmbeddedPostgres, directory: Path, times: int) -> Measure:
    """Peak memory of the receiver over one transaction of 200k subtransactions."""
    return memory_over("subtransactions", server, directory, _subtransactions)


def small_transactions(server: EmbeddedPostgres, directory: Path, times: int) -> Measure:
    """Transactions of one row a second, from the slot into the durable journal."""
    found = against_recvlogical(server, directory, _small_transactions, times)
    quickest = min(ours for _, ours in found.runs)
    return Measure(
        "small_transactions",
        SMALL_TRANSACTIONS / quickest,
        10_000,
        50_000,
        "a second",
        details=found.details | {"ratio": f"{found.best:.2f}"},
    )


def huge_transaction(server: EmbeddedPostgres, directory: Path, times: int) -> Measure:
    """Peak memory of the receiver over one transaction of 10M rows."""

    def work(source: Source) -> int:
        return source.insert(HUGE_TRANSACTION, per_transaction=HUGE_TRANSACTION)

    return memory_over("huge_transaction", server, directory, work)


def huge_row(server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int) -> Measure:
    """A value of 200 MiB by copy into Delta, and one by stream: the receiver's peak memory.

    The streamed one is not written to Delta: Spark's Parquet writer needs more memory for it
    than a driver of 2 GiB has.
    """
    columns = "id bigint PRIMARY KEY, doc text STORAGE EXTERNAL"
    with fresh_source(server, directory, "huge_row", columns=columns) as source:
        _insert_huge(source, 1)
        with make_pipeline(source, spark) as running, timed() as copy:
            running.wait_until_ready(timeout=300)
        lake_table = spark.read.format("delta").load(table_path(source))
        found = lake_table.selectExpr("id", "md5(cast(doc AS binary))").collect()
        _insert_huge(source, 2)
        with receiver(source.config()) as child, timed() as stream:
            child.wait_until(1)
            peak = peak_memory(child.process.pid)
            (row,) = [
                row["after"]
                for path in source.config().journal_path.glob("segments/*/*.parquet")
                for row in pq.read_table(path).to_pylist()
            ]
        found.append((row["id"], hashlib.md5(row["doc"].encode()).hexdigest()))
        with source.connect() as connection:
            wanted = connection.execute("SELECT id, md5(doc) FROM t ORDER BY id").fetchall()
        assert [tuple(row) for row in found] == wanted
    return Measure(
        "huge_row",
        peak / 2**20,
        2048,
        1280,
        "MiB",
        below=True,
        details={"copied in": f"{copy.seconds:.2f} s", "streamed in": f"{stream.seconds:.2f} s"},
    )


def _insert_huge(source: Source, key: int) -> None:
    with source.connect() as connection:
        connection.execute(
            "INSERT INTO t SELECT %s, string_agg(md5(g::text), '') FROM generate_series(1, %s) g",
            [key, HUGE_VALUE // 32],
        )
