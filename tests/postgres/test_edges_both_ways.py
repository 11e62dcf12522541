"""Tables at the edges of what Postgres allows, by copy and by stream."""

from __future__ import annotations

import hashlib
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from psycopg import sql

from penstock.config import PgConnection
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.connection import connect, server_version
from penstock.postgres.types import spark_type
from penstock.schema import STRING
from penstock.testing import EmbeddedPostgres
from tests.campaigns.replay import journaled_changes
from tests.conftest import Database
from tests.oracle.both_ways import assert_same, both_ways

ENVELOPE = ("op", "commit_lsn", "tx_ordinal", "commit_ts", "xid", "before", "after", "unchanged")
ODD_NAMES = (
    *("a.b", ".a", "[0]", 'a"b', "a'b", "a b", " ", "A", "a", "%s", "{}", "select", "ctid "),
    *("naïve", "🚰", "\\", "tab\tnew\nline", "x" * 63),
)


@pytest.fixture
def newest(database: Database) -> PgConnection:
    return PgConnection(uri=database.dsn)


def test_as_many_columns_as_postgres_allows(newest: PgConnection, tmp_path: Path) -> None:
    with both_ways(newest, tmp_path) as ways:
        columns = ", ".join(f"c{n} smallint" for n in range(1599))
        ways.session.execute(f"CREATE TABLE public.wide (id int PRIMARY KEY, {columns})")
        values = ", ".join(f"nullif({n} % 7, 3)" for n in range(1599))
        ways.session.execute(f"INSERT INTO public.wide VALUES (1, {values})")
        ways.session.execute("INSERT INTO public.wide VALUES (2)")
        copied = ways.copied("wide")
        assert_same(copied, ways.streamed("wide"))
        expected = [None if n % 7 == 3 else n % 7 for n in range(1599)]
        first, second = (list(row.values()) for row in copied.rows.to_pylist())
        assert first == [1, *expected]
        assert second == [2, *[None] * 1599]


@pytest.mark.campaign
def test_values_of_a_hundred_megabytes(newest: PgConnection, tmp_path: Path) -> None:
    with both_ways(newest, tmp_path) as ways:
        ways.session.execute("CREATE TABLE public.large (id int PRIMARY KEY, t text, b bytea)")
        ways.session.execute("""
            INSERT INTO public.large SELECT 1, repeat(E'tab\\t\\\\back ☃\\n', 7500000),
                decode(repeat('00ff5c0a', 5000000), 'hex')
        """)
        row = ways.session.execute(
            "SELECT octet_length(t), sha256(convert_to(t, 'UTF8')), sha256(b) FROM public.large"
        ).fetchone()
        assert row is not None
        assert row[0] > 100_000_000
        copied = ways.copied("large")
        assert_same(copied, ways.streamed("large"))
        [found] = copied.rows.to_pylist()
        assert hashlib.sha256(found["t"].encode()).digest() == row[1]
        assert hashlib.sha256(found["b"]).digest() == row[2]


def test_odd_names_and_names_of_the_envelope(source: PgConnection, tmp_path: Path) -> None:
    with both_ways(source, tmp_path) as ways:
        names = [*ENVELOPE, *ODD_NAMES]
        table = sql.Identifier('Odd. "schema" 🚰', "T.a'b`c {} %s")
        kind = sql.Identifier('Odd. "schema" 🚰', "a type.")
        run = ways.session.execute
        run(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier('Odd. "schema" 🚰')))
        run(sql.SQL("CREATE TYPE {} AS ENUM ('x.y', '')").format(kind))
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), kind) for name in names]
        key = [sql.Identifier(name) for name in ("unchanged", "a.b", "id")]
        run(
            sql.SQL("CREATE TABLE {} (id int, {}, PRIMARY KEY ({}))").format(
                table, sql.SQL(", ").join(columns), sql.SQL(", ").join(key)
            )
        )
        values = ["x.y" if n % 2 else "" for n in range(len(names))]
        insert = sql.SQL("INSERT INTO {} VALUES (1, {})").format(
            table, sql.SQL(", ").join(map(sql.Literal, values))
        )
        # Not as parameters: a percent sign in a name would be taken for one.
        run(insert.as_bytes(ways.session))
        copied = ways.copied("T.a'b`c {} %s")
        assert_same(copied, ways.streamed("T.a'b`c {} %s"))
        row = dict(zip(["id", *names], [1, *values], strict=True))
        assert copied.rows.to_pylist() == [row]

        run(sql.SQL("UPDATE {} SET id = 2").format(table))
        run(sql.SQL("DELETE FROM {}").format(table))
        changes = journaled_changes(ways.catch_up(), copied.schema.id)
        old = {name: row[name] for name in ("unchanged", "a.b", "id")}
        assert [(c["op"], c["before"], c["after"]) for c in changes] == [
            ("i", None, row),
            ("u", old, row | {"id": 2}),
            ("d", old | {"id": 2}, None),
        ]


def test_an_enum_value_that_is_added_later(source: PgConnection, tmp_path: Path) -> None:
    with both_ways(source, tmp_path) as ways:
        run = ways.session.execute
        run("CREATE TYPE public.mood AS ENUM ('sad')")
        run("CREATE TABLE public.t (id int PRIMARY KEY, m public.mood, ms public.mood[])")
        run("INSERT INTO public.t VALUES (1, 'sad', '{sad,NULL}')")
        ways.catch_up()
        run("ALTER TYPE public.mood ADD VALUE 'a, b' BEFORE 'sad'")
        run("INSERT INTO public.t VALUES (2, 'a, b', '{sad,\"a, b\"}')")
        copied = ways.copied("t")
        assert_same(copied, ways.streamed("t"))
        assert copied.rows.column("m").to_pylist() == ["sad", "a, b"]
        assert copied.rows.column("ms").to_pylist() == [["sad", None], ["sad", "a, b"]]


def test_generated_and_identity_columns(source: PgConnection, tmp_path: Path) -> None:
    """Before version 18 a generated column is sent by no publication."""
    with connect(source, "test") as session:
        sends = server_version(session) >= 180000
    publication = "FOR ALL TABLES" + (" WITH (publish_generated_columns = stored)" * sends)
    with both_ways(source, tmp_path, publication=publication) as ways:
        virtual = ", v int GENERATED ALWAYS AS (a + 1) VIRTUAL" if sends else ""
        ways.session.execute(f"""
            CREATE TABLE public.t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,
                twice int GENERATED ALWAYS AS (2 * a) STORED,
                n bigint GENERATED BY DEFAULT AS IDENTITY (START 5){virtual},
                days date[] GENERATED ALWAYS AS (ARRAY[date '2024-01-01' + a]) STORED)
        """)
        ways.session.execute("INSERT INTO public.t (a) VALUES (7), (NULL), (21)")
        copied = ways.copied("t")
        assert_same(copied, ways.streamed("t"))
        expected: dict[str, list[Any]] = {"id": [1, 2, 3], "a": [7, None, 21], "n": [5, 6, 7]}
        if sends:
            days = [[date(2024, 1, 8)], [None], [date(2024, 1, 22)]]
            expected |= {"twice": [14, None, 42], "days": days}
        assert copied.rows.to_pydict() == expected


def test_a_column_list_with_a_generated_column(newest: PgConnection, tmp_path: Path) -> None:
    with connect(newest, "test") as session:
        session.execute("""
            CREATE TABLE public.t (id int PRIMARY KEY, a int, b int,
                twice int GENERATED ALWAYS AS (2 * a) STORED)
        """)
        session.execute("CREATE TABLE public.marker (id bigserial PRIMARY KEY)")
    publication = "FOR TABLE public.t (id, twice), public.marker"
    with both_ways(newest, tmp_path, publication=publication) as ways:
        ways.session.execute("INSERT INTO public.t VALUES (1, 2, 3)")
        copied = ways.copied("t")
        assert_same(copied, ways.streamed("t"))
        assert copied.rows.to_pylist() == [{"id": 1, "twice": 4}]


def test_a_database_of_another_encoding(server: EmbeddedPostgres, tmp_path: Path) -> None:
    with server.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with both_ways(PgConnection(uri=server.dsn("latin")), tmp_path) as ways:
            ways.session.execute('CREATE TABLE public."tä" (id int PRIMARY KEY, "ö" text[])')
            ways.session.execute("""INSERT INTO public."tä" VALUES (1, '{ÄÖÜ,"é,ß"}')""")
            copied = ways.copied("tä")
            assert_same(copied, ways.streamed("tä"))
            assert copied.rows.to_pylist() == [{"id": 1, "ö": ["ÄÖÜ", "é,ß"]}]
    finally:
        server.drop_database("latin")


def test_a_database_that_knows_no_encoding(server: EmbeddedPostgres, tmp_path: Path) -> None:
    with server.connect() as connection:
        connection.execute(
            "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    try:
        with both_ways(PgConnection(uri=server.dsn("bytes")), tmp_path) as ways:
            ways.session.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text, w text[])")
            ways.session.execute("CREATE TABLE public.k (id text PRIMARY KEY)")
            ways.session.execute("INSERT INTO public.t VALUES (1, 'Ä', '{ß}'), (2, NULL, NULL)")
            with server.connect("bytes", client_encoding="SQL_ASCII") as writer:
                writer.execute(
                    b"INSERT INTO public.t VALUES (3, 'a\xc4', '{a,\xc4}'), (4, '', '{}')"
                )
                writer.execute(b"INSERT INTO public.k VALUES ('\xc4')")
            copied, streamed = ways.copied("t"), ways.streamed("t")
            assert_same(copied, streamed)
            assert [tuple(row.values()) for row in copied.rows.to_pylist()] == [
                (1, "Ä", ["ß"]),
                (2, None, None),
                (3, None, None),
                (4, "", []),
            ]
            assert copied.nulled == 2
            assert [(d.column, d.row, d.count) for d in streamed.defects] == [
                ("v", "id=3", 1),
                ("w", "id=3", 1),
            ]
            with pytest.raises(PenstockError, match=r"column v of the row with id=3.*no UTF-8"):
                ways.copied("t", on_unrepresentable="error")
            with pytest.raises(PenstockError, match=r"column id of the row .*no UTF-8"):
                ways.copied("k")
            assert ways.streamed("k").defects[0].column == "id"
    finally:
        server.drop_database("bytes")


OVERRIDES = {
    "public.t": {
        "day": "string",
        "days": "string",
        "raw": "string",
        "exact": "decimal(20,4)",
        "rough": "double",
        "price": "double",
        "plain": "string",
    }
}


def test_column_types_are_the_same_both_ways(source: PgConnection, tmp_path: Path) -> None:
    with both_ways(source, tmp_path, OVERRIDES) as ways:
        ways.session.execute("""
            CREATE DOMAIN public.price AS numeric(12,2);
            CREATE DOMAIN public.low_price AS public.price;
            CREATE TABLE public.t (id int PRIMARY KEY, day date, days date[], raw bytea,
                exact numeric, rough numeric, price public.low_price, plain int)
        """)
        ways.session.execute("""
            INSERT INTO public.t VALUES
                (1, 'infinity', '[2:3]={infinity,NULL}', '\\x00ff', 1.5, 1e-3, 2.50, 7),
                (2, '0044-03-15 BC', '{{2024-01-01}}', '', 0.00001, 1e400, 'NaN', NULL),
                (3, NULL, NULL, NULL, 'NaN', 'Infinity', -0.01, -7),
                (4, '10000-01-01', '{}', '\\x', 1e16, 1e-400, NULL, 0)
        """)
        copied, streamed = ways.copied("t"), ways.streamed("t")
        assert_same(copied, streamed)
        assert [spark_type(column.type) for column in copied.schema.columns] == [
            *("int", "string", "string", "string", "decimal(20,4)", "double", "double", "string"),
        ]
        rows = copied.rows.to_pydict()
        assert rows["day"] == ["infinity", "0044-03-15 BC", None, "10000-01-01"]
        assert rows["days"] == ["[2:3]={infinity,NULL}", "{{2024-01-01}}", None, "{}"]
        assert rows["raw"] == ["\\x00ff", "\\x", None, "\\x"]
        assert rows["exact"] == [Decimal("1.5"), None, None, None]
        assert rows["rough"] == [0.001, None, float("inf"), 0.0]
        assert repr(rows["price"]) == "[2.5, nan, -0.01, None]"
        assert rows["plain"] == ["7", None, "-7", "0"]
        assert copied.nulled == sum(defect.count for defect in streamed.defects) == 4
        with pytest.raises(PenstockError, match="column exact of the row with id=2") as refused:
            ways.copied("t", "error")
        assert refused.value.kind is ErrorKind.DATA_UNREPRESENTABLE


def test_keys_stay_apart_that_are_one_as_doubles(newest: PgConnection, tmp_path: Path) -> None:
    """Also where the stream has a key that the catalog does not have any more."""
    with both_ways(newest, tmp_path, {"public.t": {"k": "double"}}) as ways:
        ways.session.execute("CREATE TABLE public.t (id int NOT NULL, k numeric PRIMARY KEY)")
        ways.session.execute(
            """BEGIN;
               INSERT INTO public.t VALUES (1, 9007199254740993), (2, 9007199254740992);
               ALTER TABLE public.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id);
               COMMIT"""
        )
        streamed = ways.streamed("t")
        assert [column.name for column in streamed.schema.key] == ["k"]
        assert streamed.rows.column("k").to_pylist() == ["9007199254740993", "9007199254740992"]
        assert ways.copied("t").rows.column("k").to_pylist() == [9007199254740992.0] * 2


def test_a_column_that_changes_its_type_stops_no_other_table(
    newest: PgConnection, tmp_path: Path
) -> None:
    """`double` is for numeric columns; the stream goes on with what the column is now."""
    with both_ways(newest, tmp_path, {"public.t": {"n": "double"}}) as ways:
        run = ways.session.execute
        run("CREATE TABLE public.t (id int PRIMARY KEY, n numeric)")
        run("INSERT INTO public.t VALUES (1, 2.5)")
        first = ways.streamed("t")
        assert first.rows.to_pylist() == [{"id": 1, "n": 2.5}]
        run("ALTER TABLE public.t ALTER n TYPE text")
        run("INSERT INTO public.t VALUES (2, 'many')")
        run("ALTER TABLE public.t DROP n")
        run("ALTER TABLE public.t ADD n numeric")
        run("INSERT INTO public.t VALUES (3, 0.1)")
        journal = ways.catch_up()
        flushes = journal.pending(first.schema.id, first.schema.version)
        files = [journal.file(segment) for flush in flushes for segment in flush.segments]
        rows = [row for file in files for row in pq.read_table(file)["after"].to_pylist()]
        assert {row["id"]: row["n"] for row in rows} == {1: 2.5, 2: "many", 3: 0.1}


def test_an_impossible_column_type_is_told_of_its_table_alone(
    newest: PgConnection, tmp_path: Path
) -> None:
    with both_ways(newest, tmp_path, {"public.t": {"n": "double"}}) as ways:
        ways.session.execute("CREATE TABLE public.t (id int PRIMARY KEY, n text)")
        ways.session.execute("CREATE TABLE public.other (id int PRIMARY KEY)")
        ways.session.execute("INSERT INTO public.t VALUES (1, 'x')")
        assert ways.streamed("t").schema.column("n").type == STRING
        assert ways.copied("other").rows.num_rows == 0
