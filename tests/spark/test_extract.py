"""Extraction: the files hold what Postgres has, and only whole ones are left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.config import PgConnection
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.catalog import table_schema
from penstock.postgres.connection import Session, connect
from penstock.postgres.copy import plan_ranges
from penstock.postgres.copy_targets import copy_targets
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.schema import TableSchema
from penstock.spark import extract as extraction
from penstock.spark.extract import Extracted, extract
from penstock.spark.row_files import RowFileWriter
from penstock.testing.postgres import wait_for
from tests.conftest import Database

WIDE = """
    CREATE TABLE public.t (id bigint PRIMARY KEY, a int, b smallint, c double precision, r real,
        d numeric(12,2), big numeric(30,5), e text, f timestamptz, g boolean, h bytea, i date,
        j timestamp, k int[], l text[], m jsonb)
"""
FILL = """
    INSERT INTO public.t
    SELECT i, CASE WHEN i % 7 > 0 THEN i END, i % 100, i * 0.37::float8, i * 0.5::real, i / 100.0,
           -i * 1e20 - 0.00001, md5(i::text) || E'\\t\\\\N\\n',
           '2001-02-03 04:05:06.789+00'::timestamptz + i * interval '1.5 s',
           i % 3 = 0, sha256(i::text::bytea), date '1999-12-31' + i % 10000,
           timestamp '1969-12-31 23:59:59.999999' + i * interval '1 h',
           CASE WHEN i % 5 > 0 THEN ARRAY[i, NULL, -i] END, ARRAY['', NULL, 'NULL', E'a"\\\\b'],
           jsonb_build_object('i', i)
    FROM generate_series(1, $rows) i
"""


@pytest.fixture
def connection(database: Database) -> PgConnection:
    return PgConnection(uri=database.dsn)


@pytest.fixture
def source(connection: PgConnection) -> Any:
    with connect(connection, "test") as session:
        yield session


def schema_of(session: Session, name: str = "public.t") -> TableSchema:
    row = session.execute("SELECT %s::regclass::oid::int", (name,)).fetchone()
    assert row is not None
    schema = table_schema(session, row[0])
    assert schema is not None
    return schema


@pytest.fixture
def copy(
    spark: SparkSession, connection: PgConnection, source: Session, tmp_path: Path
) -> Callable[..., Extracted]:
    """Extract `public.t` inside a snapshot of its own."""

    def copy(wanted: int = 6, **options: Any) -> Extracted:
        table = schema_of(source)
        with ExportedSnapshot(connection) as snapshot:
            targets = copy_targets(snapshot.connection, table)
            ranges = plan_ranges([(t.name.quoted, t.blocks) for t in targets], wanted)
            return extract(
                spark, connection, table, ranges, snapshot.id, tmp_path / "rows", **options
            )

    return copy


def rows_in(files: tuple[str, ...]) -> list[Any]:
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return sorted((tuple(row.values()) for row in rows), key=repr)


def rows_of(session: Session) -> list[Any]:
    columns = ", ".join(
        f'"{c.name}"::text' if c.type_name == "jsonb" else f'"{c.name}"'
        for c in schema_of(session).columns
    )
    return sorted(session.execute(f"SELECT {columns} FROM public.t".encode()).fetchall(), key=repr)


def fill(session: Session, rows: int) -> None:
    session.execute(WIDE)
    session.execute(FILL.replace("$rows", str(rows)).encode())


def left_in(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*"))


def test_files_hold_the_rows_of_the_table(
    copy: Callable[..., Extracted], source: Session, tmp_path: Path
) -> None:
    fill(source, 20_000)
    extracted = copy()
    assert rows_in(extracted.files) == rows_of(source)
    assert extracted.rows == 20000
    assert extracted.nulled == 0
    assert extracted.bytes == sum(Path(file).stat().st_size for file in extracted.files)
    assert left_in(tmp_path / "rows") == sorted(extracted.files)


def test_spark_and_delta_read_the_files_with_their_types(
    copy: Callable[..., Extracted], source: Session, spark: SparkSession, tmp_path: Path
) -> None:
    fill(source, 1000)
    copy()
    path = tmp_path / "rows"
    frame = spark.read.parquet(str(path))
    assert dict(frame.dtypes) == {
        "id": "bigint",
        "a": "int",
        "b": "smallint",
        "c": "double",
        "r": "float",
        "d": "decimal(12,2)",
        "big": "decimal(30,5)",
        "e": "string",
        "f": "timestamp",
        "g": "boolean",
        "h": "binary",
        "i": "date",
        "j": "timestamp_ntz",
        "k": "array<int>",
        "l": "array<string>",
        "m": "string",
    }
    query = "SELECT count(*), sum(id), sum(d), sum(big), min(unix_micros(f)), max(j) FROM {table}"
    expected = source.execute("""
        SELECT count(*), sum(id), sum(d), sum(big),
               (extract(epoch FROM min(f)) * 1000000)::bigint, max(j) FROM public.t
    """).fetchone()
    assert tuple(spark.sql(query, table=frame).collect()[0]) == expected
    spark.sql(f"CONVERT TO DELTA parquet.`{path}`")
    delta = spark.read.format("delta").load(str(path))
    assert delta.dtypes == frame.dtypes
    assert tuple(spark.sql(query, table=delta).collect()[0]) == expected


def test_an_empty_table_gives_no_files(
    copy: Callable[..., Extracted], source: Session, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE public.t (id int)")
    assert copy() == Extracted((), 0, 0, 0)
    assert left_in(tmp_path / "rows") == []


def test_partitions_are_read_into_one_set_of_files(
    copy: Callable[..., Extracted], source: Session
) -> None:
    source.execute("CREATE TABLE public.t (id int, a text) PARTITION BY HASH (id)")
    for part in range(5):
        source.execute(
            f"CREATE TABLE public.p{part} PARTITION OF public.t"
            f" FOR VALUES WITH (MODULUS 5, REMAINDER {part})"
        )
    source.execute("INSERT INTO public.t SELECT i, 'x' || i FROM generate_series(1, 5000) i")
    extracted = copy()
    assert rows_in(extracted.files) == rows_of(source)
    assert len(extracted.files) <= 2


def test_files_are_bounded_in_size(
    copy: Callable[..., Extracted], source: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.execute("CREATE TABLE public.t AS SELECT i, repeat(md5(i::text), 30) a FROM "
                   "generate_series(1, 150000) i")  # fmt: skip
    extracted = copy(max_file_bytes=1 << 20)
    assert len(extracted.files) > 1
    assert rows_in(extracted.files) == rows_of(source)


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_rows_that_lie_together_stay_together(
    copy: Callable[..., Extracted], source: Session, compression: str
) -> None:
    source.execute("CREATE TABLE public.t AS SELECT i FROM generate_series(1, 200000) i")
    extracted = copy(connections=1, compression=compression)
    (file,) = extracted.files
    values = pq.read_table(file).column("i").to_pylist()
    assert values == list(range(1, 200_001))
    statistics = pq.read_metadata(file).row_group(0).column(0).statistics
    assert (statistics.min, statistics.null_count) == (1, 0)


def test_writers_do_not_disturb_the_snapshot(
    spark: SparkSession, connection: PgConnection, source: Session, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE public.t (id int PRIMARY KEY, a int)")
    source.execute("INSERT INTO public.t SELECT i, 0 FROM generate_series(1, 100000) i")
    stop = threading.Event()

    def write() -> None:
        with connect(connection, "writer") as writer:
            step = 0
            while not stop.is_set():
                step += 1
                writer.execute("UPDATE public.t SET a = %s WHERE id %% 40 = %s", (step, step % 40))
                writer.execute("DELETE FROM public.t WHERE id = %s", (step,))
                writer.execute("INSERT INTO public.t VALUES (%s, %s)", (200_000 + step, step))

    table = schema_of(source)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        with ExportedSnapshot(connection) as snapshot:
            expected = rows_of(snapshot.connection)
            targets = copy_targets(snapshot.connection, table)
            ranges = plan_ranges([(t.name.quoted, t.blocks) for t in targets], 6)
            extracted = extract(spark, connection, table, ranges, snapshot.id, tmp_path / "rows")
    finally:
        stop.set()
        writer.join()
    assert rows_in(extracted.files) == expected


def test_a_row_filter_applies(copy: Callable[..., Extracted], source: Session) -> None:
    source.execute("CREATE TABLE public.t AS SELECT i FROM generate_series(1, 1000) i")
    assert copy(row_filter="i <= 10").rows == 10


def test_progress_counts_up_to_the_end(
    copy: Callable[..., Extracted], source: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "_POLL_SECONDS", 0.01)
    source.execute("CREATE TABLE public.t AS SELECT i, repeat('x', 500) a FROM "
                   "generate_series(1, 300000) i")  # fmt: skip
    counts: list[int] = []
    copy(progress=counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == 300_000
    assert any(0 < count < 300_000 for count in counts)


# Trouble.


def test_a_bad_value_reaches_the_driver_as_the_tasks_own_error(
    copy: Callable[..., Extracted], source: Session, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE public.t (id int PRIMARY KEY, d date)")
    source.execute("INSERT INTO public.t SELECT i, '2020-01-01' FROM generate_series(1, 90000) i")
    source.execute("UPDATE public.t SET d = 'infinity' WHERE id = 45678")
    with pytest.raises(PenstockError) as caught:
        copy()
    error = caught.value
    assert error.kind is ErrorKind.DATA_UNREPRESENTABLE
    assert "id=45678" in error.message
    assert "infinity" in error.message
    assert error.hint
    assert error.table == schema_of(source).name
    assert left_in(tmp_path / "rows") == []
    extracted = copy(on_unrepresentable="null")
    assert (extracted.rows, extracted.nulled) == (90_000, 1)


def test_a_copy_that_is_to_stop_ends_soon_and_leaves_nothing(
    copy: Callable[..., Extracted], source: Session, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE public.t AS SELECT i, repeat('x', 500) a FROM "
                   "generate_series(1, 300000) i")  # fmt: skip
    stop = threading.Event()
    stop.set()
    with pytest.raises(PenstockError) as caught:
        copy(stop=stop)
    assert caught.value.kind.retryable
    assert left_in(tmp_path / "rows") == []


def waiting(session: Session, event: str) -> int:
    """How many of the tasks' sessions wait for something in Postgres."""
    query = """
        SELECT FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = 'penstock_copy' AND wait_event = %s
    """
    return len(session.execute(query, [event]).fetchall())


def test_a_copy_whose_row_filter_lets_nothing_through_can_be_stopped(
    copy: Callable[..., Extracted], source: Session, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE public.t AS SELECT i FROM generate_series(1, 1000) i")
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        copied = thread.submit(copy, row_filter="pg_sleep(0.1) IS NULL", stop=stop)
        wait_for(lambda: waiting(source, "PgSleep"))
        stop.set()
        wait_for(copied.done, "it is scanned to its end", limit=30)
        with pytest.raises(PenstockError, match="stopped before its end"):
            copied.result()
    assert waiting(source, "PgSleep") == 0
    assert left_in(tmp_path / "rows") == []


def test_a_task_that_waits_for_a_lock_does_not_keep_back_what_another_found(
    spark: SparkSession, connection: PgConnection, source: Session, tmp_path: Path
) -> None:
    source.execute("""
        CREATE TABLE public.t (id int PRIMARY KEY, d date) PARTITION BY LIST (id);
        CREATE TABLE public.p1 PARTITION OF public.t FOR VALUES IN (1);
        CREATE TABLE public.p2 PARTITION OF public.t FOR VALUES IN (2);
        INSERT INTO public.t VALUES (1, '2020-01-01'), (2, 'infinity')
    """)
    table = schema_of(source)
    ranges = plan_ranges([("public.p1", 1), ("public.p2", 1)], 2)
    with (
        connect(connection, "other", autocommit=False) as other,
        ExportedSnapshot(connection) as snapshot,
        ThreadPoolExecutor(1) as thread,
    ):
        other.execute("LOCK TABLE public.p1 IN ACCESS EXCLUSIVE MODE")
        copied = thread.submit(
            extract, spark, connection, table, ranges, snapshot.id, tmp_path / "rows"
        )
        try:
            wait_for(copied.done, "the copy waits for the lock", limit=30)
        finally:
            other.rollback()
        with pytest.raises(PenstockError) as caught:
            copied.result()
    assert caught.value.kind is ErrorKind.DATA_UNREPRESENTABLE


def test_a_snapshot_that_is_gone_is_told(
    spark: SparkSession, connection: PgConnection, source: Session, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE public.t (id int)")
    with pytest.raises(PenstockError) as caught:
        extract(
            spark,
            connection,
            schema_of(source),
            plan_ranges([("public.t", 1)], 1),
            "0-0-1",
            tmp_path,
        )
    assert caught.value.kind is ErrorKind.SOURCE_SNAPSHOT


def test_a_directory_that_cannot_be_written_is_named(
    spark: SparkSession, connection: PgConnection, source: Session, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE public.t (id int)")
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError) as caught:
        extract(
            spark,
            connection,
            schema_of(source),
            plan_ranges([("public.t", 1)], 1),
            "0-0-1",
            tmp_path / "file" / "rows",
        )
    assert caught.value.kind is ErrorKind.JOURNAL
    assert str(tmp_path / "file") in caught.value.message


def test_the_password_is_in_no_plan(
    spark: SparkSession, copy: Callable[..., Extracted], source: Session, capfd: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source.execute("CREATE TABLE public.t AS SELECT 1 AS i")
    plans = []
    run = type(spark.range(1)).collect

    def collect(self: Any) -> Any:
        plans.append(self._jdf.queryExecution().toString())
        return run(self)

    monkeypatch.setattr(type(spark.range(1)), "collect", collect)
    assert copy().rows == 1
    assert plans
    assert not any("host=" in plan or "dbname" in plan for plan in plans)


def test_ranges_whose_report_is_lost_are_read_again(
    copy: Callable[..., Extracted],
    source: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source.execute("CREATE TABLE public.t AS SELECT i FROM generate_series(1, 200000) i")
    jobs = []
    run_job = extraction._run_job

    def lossy(session: SparkSession, work: Any, tasks: int) -> list[str]:
        jobs.append(work.numbers)
        if len(jobs) > 1:
            return run_job(session, work, tasks)
        kept = run_job(session, replace(work, numbers=work.numbers[:3]), 1)
        run_job(session, replace(work, numbers=work.numbers[3:]), 1)
        return kept

    monkeypatch.setattr(extraction, "_run_job", lossy)
    extracted = copy()
    assert len(jobs) == 2
    assert set(jobs[1]) < set(jobs[0])
    assert rows_in(extracted.files) == rows_of(source)
    assert left_in(tmp_path / "rows") == sorted(extracted.files)


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    drafts, directory = tmp_path / "drafts", tmp_path / "rows"
    drafts.mkdir()
    directory.mkdir()
    batch = pa.record_batch({"i": pa.array(range(10_000_000), pa.int64())})
    writer = RowFileWriter(
        directory, drafts, "rows", batch.schema, compression="snappy", max_file_bytes=1 << 40
    )
    writer.write(batch)
    assert (left_in(directory), len(left_in(drafts))) == ([], 1)
    writer.close()
    assert (len(left_in(directory)), left_in(drafts)) == (1, [])
    assert [file.rows for file in writer.files] == [10_000_000]
