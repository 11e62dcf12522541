"""Ranges and COPY: what is read equals what Postgres has, value by value."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import pq

from penstock.config import PgConnection
from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline.failures import failure_of
from penstock.postgres import libpq
from penstock.postgres.catalog import table_schema
from penstock.postgres.connection import Session, connect
from penstock.postgres.copy import (
    CtidRange,
    arrow_schema,
    copy_range,
    plan_ranges,
    snapshot_session,
)
from penstock.postgres.copy_targets import copy_targets
from penstock.postgres.copy_text import split
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.schema import TableSchema
from penstock.testing import EmbeddedPostgres

ODD_TEXTS = [
    None,
    "",
    "N",
    "\\N",
    "\\\\N",
    "\\",
    "\\.",
    "a\tb",
    "a\nb",
    "a\r\nb",
    "\t",
    "\n",
    "\b\f\v",
    "\\t\\n",
    "NULL",
    "naïve — 日本語 🚰",
    '"quoted", {braces}',
    " both ends ",
    "x" * 5000,
    "\\" * 999,
]


def schema_of(session: Session, name: str) -> TableSchema:
    row = session.execute("SELECT %s::regclass::oid::int", (name,)).fetchone()
    assert row is not None
    schema = table_schema(session, row[0])
    assert schema is not None
    return schema


def ranges_of(session: Session, table: TableSchema, wanted: int) -> list[CtidRange]:
    targets = [(target.name.quoted, target.blocks) for target in copy_targets(session, table)]
    return plan_ranges(targets, wanted)


def copied(session: Session, table: TableSchema, wanted: int = 1, **options: Any) -> list[Any]:
    rows: list[Any] = []
    for part in ranges_of(session, table, wanted):
        for copied in copy_range(session, table, part, **options):
            assert copied.batch.schema == arrow_schema(table)
            rows += [tuple(row.values()) for row in copied.batch.to_pylist()]
    return rows


def selected(session: Session, table: TableSchema, relation: str | None = None) -> list[Any]:
    columns = psycopg.sql.SQL(", ").join(
        psycopg.sql.Identifier(column.name) for column in table.columns
    )
    query = psycopg.sql.SQL("SELECT {} FROM ").format(columns)
    return session.execute(
        query + psycopg.sql.SQL(relation or table.name.quoted)  # type: ignore[arg-type]
    ).fetchall()


def in_any_order(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


@contextmanager
def running(work: Any) -> Iterator[None]:
    """`work(stop)` in a thread for as long as the block lasts."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# Ranges.


@given(
    st.lists(st.integers(min_value=0, max_value=100_000), max_size=20),
    st.integers(min_value=1, max_value=64),
)
def test_ranges_cover_every_block_of_every_relation_once(blocks: list[int], wanted: int) -> None:
    targets = [(f'"r{i}"', count) for i, count in enumerate(blocks)]
    ranges = plan_ranges(targets, wanted)
    for relation, count in targets:
        own = [part for part in ranges if part.relation == relation]
        assert own[0].first_block == 0
        assert [part.last_block is None for part in own] == [False] * (len(own) - 1) + [True]
        for one, following in pairwise(own):
            assert following.first_block == (one.last_block or 0) + 1
        assert sum(part.blocks for part in own) == count


def test_ranges_are_of_about_the_same_size() -> None:
    ranges = plan_ranges([('"big"', 10_000), ('"small"', 10), ('"half"', 5_000)], 15)
    assert len(ranges) == 16
    assert {part.blocks for part in ranges if part.relation != '"small"'} == {1000}


def test_a_small_table_is_one_range() -> None:
    assert plan_ranges([('"t"', 100)], 16) == [CtidRange('"t"')]


def test_an_empty_table_has_a_range_all_the_same() -> None:
    assert plan_ranges([('"t"', 0)], 4) == [CtidRange('"t"', 0, None)]


# Values.


def test_text_comes_through_unchanged(session: Session) -> None:
    session.execute("CREATE TABLE public.t (id int PRIMARY KEY, a text, b text)")
    rows = [(i, text, ODD_TEXTS[-1 - i]) for i, text in enumerate(ODD_TEXTS)]
    session.cursor().executemany("INSERT INTO public.t VALUES (%s, %s, %s)", rows)
    assert in_any_order(copied(session, schema_of(session, "public.t"))) == in_any_order(rows)


@settings(max_examples=200)
@given(
    st.lists(
        st.lists(
            st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
            min_size=3,
            max_size=3,
        ),
        max_size=20,
    )
)
def test_splitting_undoes_copys_escapes(rows: list[list[str | None]]) -> None:
    escapes = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    table = str.maketrans(escapes | {"\v": "\\v"})
    lines = "".join(
        "\t".join("\\N" if text is None else text.translate(table) for text in row) + "\n"
        for row in rows
    )
    buffer = np.frombuffer(bytearray(lines.encode()) or bytearray(1), np.uint8)
    columns = split(buffer, len(lines.encode()), len(rows), 3)
    for number, row in enumerate(rows):
        for column, text in zip(columns, row, strict=True):
            start, length = column.starts[number], column.lengths[number]
            got = None if length == -1 else bytes(buffer[start : start + length]).decode()
            assert got == text


@pytest.mark.parametrize("lines", [b"a\tb\n", b"a\tb\tc\td\n", b"a\tb\tc", b"\n"])
def test_rows_of_another_shape_are_refused(lines: bytes) -> None:
    buffer = np.frombuffer(bytearray(lines), np.uint8)
    with pytest.raises(PenstockError) as caught:
        split(buffer, len(lines), 1, 3)
    assert caught.value.kind is ErrorKind.DATA_DECODE


def test_typed_columns_equal_what_postgres_has(session: Session) -> None:
    session.execute("""
        CREATE TABLE public.t (id bigint PRIMARY KEY, a int, b smallint, c double precision,
            d numeric(12,2), e text, f timestamptz, g boolean, h bytea, i date, j timestamp,
            k int[], l uuid)
    """)
    session.execute("""
        INSERT INTO public.t
        SELECT i, CASE WHEN i % 7 > 0 THEN i END, i % 100, i * 0.37::float8, i / 100.0,
               md5(i::text), '2001-02-03 04:05:06.789+00'::timestamptz + i * interval '1.5 s',
               i % 3 = 0, sha256(i::text::bytea), date '1999-12-31' + i,
               timestamp '1969-12-31 23:59:59.999999' + i * interval '1 day',
               CASE WHEN i % 5 > 0 THEN ARRAY[i, NULL, -i] END, NULL
        FROM generate_series(1, 3000) i
    """)
    table = schema_of(session, "public.t")
    assert in_any_order(copied(session, table, 3)) == in_any_order(selected(session, table))


def test_column_and_table_names_may_be_odd(session: Session) -> None:
    session.execute('CREATE SCHEMA "a ""b"')
    session.execute("""
        CREATE TABLE "a ""b"."T.x'y" ("select" int, "Käse" text, "a""b" text, "%s" text, "{}" int)
    """)
    session.execute("""INSERT INTO "a ""b"."T.x'y" VALUES (1, 'x', 'y', 'z', 2)""")
    table = schema_of(session, """"a ""b"."T.x'y\"""")
    assert copied(session, table) == [(1, "x", "y", "z", 2)]


def test_wide_values_come_through(session: Session) -> None:
    session.execute("CREATE TABLE public.t (id int, a text, b bytea)")
    session.execute("""
        INSERT INTO public.t
        SELECT i, repeat(E'tab\\t\\\\' || i, 100000 * i), decode(repeat('00ff5c', 200000), 'hex')
        FROM generate_series(1, 8) i
    """)
    table = schema_of(session, "public.t")
    rows = copied(session, table, buffer_bytes=1 << 20)
    assert in_any_order(rows) == in_any_order(selected(session, table))


def test_only_the_wanted_columns_are_read_in_their_order(session: Session) -> None:
    session.execute("CREATE TABLE public.t (a int, gone int, b text, c int)")
    session.execute("ALTER TABLE public.t DROP COLUMN gone")
    session.execute("INSERT INTO public.t VALUES (1, 'x', 3)")
    whole = schema_of(session, "public.t")
    table = TableSchema(whole.id, whole.name, (whole.columns[2], whole.columns[0]))
    assert copied(session, table) == [(3, 1)]


def test_a_row_filter_applies(session: Session) -> None:
    session.execute("CREATE TABLE public.t AS SELECT i FROM generate_series(1, 100000) i")
    table = schema_of(session, "public.t")
    rows = copied(session, table, 4, row_filter="i > 10 OR i = 3")
    assert sorted(row[0] for row in rows) == [3, *range(11, 100001)]


# Tables of every shape.


def test_an_empty_table_has_no_rows(session: Session) -> None:
    session.execute("CREATE TABLE public.t (id int)")
    assert copied(session, schema_of(session, "public.t")) == []


def test_dead_rows_are_left_out_and_updated_ones_read_once(session: Session) -> None:
    session.execute("CREATE TABLE public.t (id int, a int)")
    session.execute("INSERT INTO public.t SELECT i, 0 FROM generate_series(1, 60000) i")
    session.execute("DELETE FROM public.t WHERE id % 3 = 0")
    session.execute("UPDATE public.t SET a = id WHERE id % 2 = 0")
    table = schema_of(session, "public.t")
    assert len(ranges_of(session, table, 4)) > 1
    assert in_any_order(copied(session, table, 4)) == in_any_order(selected(session, table))


def test_children_by_inheritance_are_other_tables(session: Session) -> None:
    session.execute("CREATE TABLE public.t (id int)")
    session.execute("CREATE TABLE public.child () INHERITS (public.t)")
    session.execute("INSERT INTO public.t VALUES (1)")
    session.execute("INSERT INTO public.child VALUES (2)")
    assert copied(session, schema_of(session, "public.t")) == [(1,)]


def test_leaves_of_a_partitioned_table_are_read_by_column_name(session: Session) -> None:
    session.execute("CREATE TABLE public.t (id int, a text) PARTITION BY RANGE (id)")
    session.execute("CREATE TABLE public.low PARTITION OF public.t FOR VALUES FROM (0) TO (10)")
    session.execute("CREATE TABLE public.high (a text, gone int, id int)")
    session.execute("ALTER TABLE public.high DROP COLUMN gone")
    session.execute("""
        ALTER TABLE public.t ATTACH PARTITION public.high FOR VALUES FROM (10) TO (1000)
    """)
    session.execute("""
        CREATE TABLE public.nested PARTITION OF public.t FOR VALUES FROM (1000) TO (2000)
            PARTITION BY LIST (id)
    """)
    session.execute("CREATE TABLE public.leaf PARTITION OF public.nested DEFAULT")
    session.execute("INSERT INTO public.t SELECT i, 'x' || i FROM generate_series(0, 1500) i")
    table = schema_of(session, "public.t")
    assert in_any_order(copied(session, table)) == in_any_order(selected(session, table))


# The snapshot.


def test_sessions_read_what_the_snapshot_sees_while_others_write(
    source: PgConnection, session: Session
) -> None:
    session.execute("CREATE TABLE public.t (id int PRIMARY KEY, a int)")
    session.execute("INSERT INTO public.t SELECT i, 0 FROM generate_series(1, 50000) i")
    table = schema_of(session, "public.t")

    def write(stop: threading.Event) -> None:
        with connect(source, "writer") as writer:
            for step in range(1, 10_000):
                writer.execute("UPDATE public.t SET a = %s WHERE id %% 50 = %s", (step, step % 50))
                writer.execute("DELETE FROM public.t WHERE id = %s", (step,))
                writer.execute("INSERT INTO public.t VALUES (%s, %s)", (100_000 + step, step))
                if stop.is_set():
                    return

    with running(write), ExportedSnapshot(source) as snapshot:
        expected = selected(snapshot.connection, table)
        ranges = ranges_of(snapshot.connection, table, 5)
        rows = []
        for part in reversed(ranges):
            with snapshot_session(source, snapshot.id) as reader:
                for copied in copy_range(reader, table, part):
                    rows += [tuple(row.values()) for row in copied.batch.to_pylist()]
    assert in_any_order(rows) == in_any_order(expected)


def test_a_snapshot_that_is_gone_is_an_error_that_passes(
    source: PgConnection, session: Session
) -> None:
    with ExportedSnapshot(source) as snapshot:
        gone = snapshot.id
    with pytest.raises(PenstockError) as caught, snapshot_session(source, gone):
        pass
    assert caught.value.kind is ErrorKind.SOURCE_SNAPSHOT
    assert caught.value.kind.retryable


# Trouble.


@pytest.fixture
def dated(session: Session) -> TableSchema:
    session.execute('CREATE TABLE public.t (id int, "Sub" text, d date, PRIMARY KEY (id, "Sub"))')
    session.execute("""
        INSERT INTO public.t VALUES (1, 'a', '2020-02-29'), (2, 'b', 'infinity'), (3, 'c', NULL),
            (4, 'd', '0044-03-15 BC')
    """)
    return schema_of(session, "public.t")


def test_an_unrepresentable_value_is_an_error_that_names_it(
    session: Session, dated: TableSchema
) -> None:
    with pytest.raises(PenstockError) as caught:
        copied(session, dated)
    error = caught.value
    assert error.kind is ErrorKind.DATA_UNREPRESENTABLE
    assert error.table == dated.name
    for part in ("d", "id=2", "Sub=b", "infinity"):
        assert part in error.message
    assert "column_types" in (error.hint or "")


def test_an_unrepresentable_value_may_become_null_and_is_counted(
    session: Session, dated: TableSchema
) -> None:
    part = CtidRange(dated.name.quoted)
    batches = list(copy_range(session, dated, part, on_unrepresentable="null"))
    assert sum(copied.nulled for copied in batches) == 2
    dates = [d for copied in batches for d in copied.batch.column("d").to_pylist()]
    assert [d is None for d in dates] == [False, True, True, True]


def test_an_unrepresentable_key_never_becomes_null(session: Session) -> None:
    """Rows that NULL names would be taken for one."""
    session.execute("CREATE TABLE public.t (d date PRIMARY KEY)")
    session.execute("INSERT INTO public.t VALUES ('infinity'), ('-infinity')")
    with pytest.raises(PenstockError, match="column d of the row with d=infinity") as caught:
        copied(session, schema_of(session, "public.t"), on_unrepresentable="null")
    assert caught.value.kind is ErrorKind.DATA_UNREPRESENTABLE
    assert "on_unrepresentable" not in (caught.value.hint or "")


def test_a_long_value_is_cut_in_the_error(session: Session) -> None:
    session.execute("CREATE TABLE public.t (id text PRIMARY KEY, a int[])")
    session.execute("INSERT INTO public.t VALUES (repeat('k', 2000), ARRAY[ARRAY[1]])")
    with pytest.raises(PenstockError) as caught:
        copied(session, schema_of(session, "public.t"))
    assert len(caught.value.message) < 700


def test_a_missing_table_is_named(session: Session) -> None:
    session.execute("CREATE TABLE public.t (id int)")
    table = schema_of(session, "public.t")
    session.execute("DROP TABLE public.t")
    with pytest.raises(PenstockError) as caught:
        list(copy_range(session, table, CtidRange(table.name.quoted)))
    assert caught.value.kind is ErrorKind.SOURCE_SCHEMA
    assert caught.value.table == table.name


def test_a_missing_privilege_is_told(session: Session, someone: PgConnection) -> None:
    session.execute("CREATE TABLE public.t (id int)")
    table = schema_of(session, "public.t")
    session.execute(f"GRANT USAGE ON SCHEMA public TO {someone.user}")
    with connect(someone, "test") as other, pytest.raises(PenstockError) as caught:
        list(copy_range(other, table, CtidRange(table.name.quoted)))
    assert caught.value.kind is ErrorKind.SOURCE_PRIVILEGE


def test_a_failure_half_way_is_an_error_and_not_the_end(session: Session) -> None:
    session.execute("CREATE TABLE public.t AS SELECT i FROM generate_series(1, 300000) i")
    table = schema_of(session, "public.t")
    batches = copy_range(
        session,
        table,
        CtidRange(table.name.quoted),
        row_filter="1 / (i - 250000) < 2",
        buffer_bytes=100_000,
    )
    seen: list[int] = []
    with pytest.raises(PenstockError):
        seen.extend(copied.batch.num_rows for copied in batches)
    assert 0 < sum(seen) < 250_000


@pytest.mark.parametrize("row_filter", ["1 / (i - 7) < 2", "t::int > 0"])
def test_a_row_that_the_filter_fails_for_is_bad_data(session: Session, row_filter: str) -> None:
    session.execute(
        "CREATE TABLE public.t AS SELECT i, 'hunter' || i t FROM generate_series(1, 9) i"
    )
    table = schema_of(session, "public.t")
    with pytest.raises(PenstockError) as caught:
        copied(session, table, row_filter=row_filter)
    assert caught.value.kind is ErrorKind.DATA_DECODE
    assert caught.value.table == table.name
    assert "row filter" in (caught.value.hint or "")
    assert "hunter" not in failure_of(caught.value).loggable


def test_a_text_without_an_equivalent_in_utf8_is_bad_data(server: EmbeddedPostgres) -> None:
    with server.connect() as connection:
        connection.execute("CREATE DATABASE win ENCODING 'WIN1252' LOCALE 'C' TEMPLATE template0")
    try:
        with connect(PgConnection(uri=server.dsn("win")), "test") as session:
            with server.connect("win", client_encoding="WIN1252") as writer:
                writer.execute(b"CREATE TABLE public.t AS SELECT 'a\x81' t")
            with pytest.raises(PenstockError) as caught:
                copied(session, schema_of(session, "public.t"))
    finally:
        server.drop_database("win")
    assert caught.value.kind is ErrorKind.DATA_DECODE
    assert "UTF-8" in (caught.value.hint or "")


@pytest.mark.parametrize("quick", [True, False])
def test_a_lost_connection_is_an_error_that_passes(
    source: PgConnection, session: Session, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    if not quick:
        monkeypatch.setattr(libpq, "_register", lambda: False)
    session.execute("CREATE TABLE public.t AS SELECT i FROM generate_series(1, 500000) i")
    table = schema_of(session, "public.t")
    reader = connect(source, "reader")
    rows = copy_range(reader, table, CtidRange(table.name.quoted), buffer_bytes=10_000)
    next(rows)
    session.execute("SELECT pg_terminate_backend(%s)", (reader.info.backend_pid,))
    with pytest.raises(PenstockError) as caught:
        list(rows)
    assert caught.value.kind.retryable


# libpq.


def start_copy(session: Session, query: str) -> None:
    result = session.pgconn.exec_(f"COPY ({query}) TO STDOUT".encode())
    assert result.status == pq.ExecStatus.COPY_OUT


@pytest.mark.parametrize("quick", [True, False])
def test_messages_arrive_whole_and_in_order_whatever_the_buffer(
    session: Session, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    if not quick:
        monkeypatch.setattr(libpq, "_register", lambda: False)
    start_copy(session, "SELECT i, repeat('x', i % 300 * (i % 7)) FROM generate_series(1, 2000) i")
    buffer, reader = libpq.CopyBuffer(1000, 100), libpq.CopyReader(session.pgconn)
    received, status = [], libpq.FULL
    while status == libpq.FULL:
        buffer.clear()
        status = reader.read(buffer)
        begins = [0, *buffer.ends[: buffer.count]]
        received += [bytes(buffer.data[begin:end]).decode() for begin, end in pairwise(begins)]
        assert buffer.count <= 100
        assert buffer.count == 1 or buffer.size <= 2000
    assert status == libpq.ENDED
    while session.pgconn.get_result() is not None:
        pass
    assert received == [f"{i}\t{'x' * (i % 300 * (i % 7))}\n" for i in range(1, 2001)]


def test_the_libpq_of_psycopg_is_found() -> None:
    assert libpq._register()


def test_a_batch_is_bounded_by_the_buffer(session: Session) -> None:
    session.execute(
        "CREATE TABLE public.t AS SELECT md5(i::text) a FROM generate_series(1, 9999) i"
    )
    table = schema_of(session, "public.t")
    batches = list(copy_range(session, table, CtidRange(table.name.quoted), buffer_bytes=10_000))
    assert len(batches) > 30
    assert sum(copied.batch.num_rows for copied in batches) == 9999
    assert all(isinstance(copied.batch, pa.RecordBatch) for copied in batches)
