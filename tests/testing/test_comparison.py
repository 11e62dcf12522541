"""The comparison finds what differs, and is not fooled by how values are written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from penstock.demo import shop
from penstock.demo.shoppers import Workload
from penstock.schema import TableName
from penstock.testing.comparison import SourceTable, compare_rows
from tests.conftest import Database

NAME = TableName("public", "t")


def rows(*values: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    return [((value[0],), value) for value in values]


def test_equal_rows_in_any_order_are_equal() -> None:
    found = compare_rows(NAME, rows((1, "a"), (2, None)), rows((2, None), (1, "a")))
    assert found.equal
    assert (found.source_rows, found.mirror_rows) == (2, 2)


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        (rows((1, "a")), (1, 0, 0)),
        (rows((1, "a"), (2, "b"), (3, "c")), (0, 1, 0)),
        (rows((1, "a"), (2, "b"), (2, "b")), (0, 1, 0)),
        (rows((1, "a"), (2, "B")), (0, 0, 1)),
        (rows((1, "a"), (3, "b")), (1, 1, 0)),
    ],
)
def test_every_difference_is_counted(
    mirror: list[tuple[tuple[Any, ...], tuple[Any, ...]]], expected: tuple[int, int, int]
) -> None:
    found = compare_rows(NAME, rows((1, "a"), (2, "b")), mirror)
    assert (found.missing, found.surplus, found.different) == expected
    assert not found.equal
    assert found.examples


def test_types_without_a_value_of_their_own_are_compared_as_psql_shows_them(
    database: Database,
) -> None:
    with database.connect() as connection:
        connection.execute(
            "CREATE TABLE t (id int PRIMARY KEY, i inet, v interval, c char(3), r real, n numeric,"
            " d numeric(6,2), f float8, j jsonb, a real[], z timestamptz)"
        )
        connection.execute(
            "INSERT INTO t VALUES (1, '10.0.0.1', '1 day 02:00', 'x', 0.1, 1.50, 1.50, 'NaN',"
            " '{\"a\":  1}', '{0.1,NULL}', '2025-01-01 00:00+01')"
        )
        ((key, row),) = SourceTable(connection, NAME).rows()
    assert key == (1,)
    widened = 0.10000000149011612
    assert row[1:6] == ("10.0.0.1", "1 day 02:00:00", "x  ", widened, "1.50")
    assert row[7:10] == ("NaN", '{"a": 1}', (widened, None))


def test_domains_numerics_and_oids_are_compared_as_what_the_mirror_has(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE DOMAIN price AS numeric(10,3); CREATE DOMAIN code AS inet")
        connection.execute(
            "CREATE TABLE t (id oid PRIMARY KEY, p price, c code, a numeric(39,1), b numeric(2,3),"
            " n numeric(2,3)[], d numeric(4,1)[])"
        )
        connection.execute(
            "INSERT INTO t VALUES (4000000000, 1.5, '10.0.0.1', 2, 0.012, '{0.01}', '{2.5,NULL}')"
        )
        ((key, row),) = SourceTable(connection, NAME).rows()
    assert key == (4_000_000_000,)
    assert row[1:5] == (Decimal("1.500"), "10.0.0.1", "2.0", "0.012")
    assert row[5:] == (("0.010",), (Decimal("2.5"), None))


def test_rows_without_a_key_are_compared_with_their_number(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (a int, f float8)")
        connection.execute("INSERT INTO t VALUES (1, 'NaN'), (1, 'NaN'), (2, NULL)")
        source = SourceTable(connection, NAME)
        nan = float("nan")
        once = source.keyed([(1, nan), (2, None)])
        found = compare_rows(NAME, source.rows(), once)
        assert (found.missing, found.surplus, found.different) == (1, 0, 0)
        twice = source.keyed([(1, nan), (2, None), (1, nan)])
        assert compare_rows(NAME, source.rows(), twice).equal


def test_the_shop_is_filled_and_changed(database: Database) -> None:
    with database.connect() as connection:
        shop.create(connection)
        assert shop.fill(connection, scale=0.01) == 2000
        workload = Workload(database.dsn, pause=0, seed=7)
        with workload:
            while workload.counts.total() < 200:
                assert workload.running
        assert workload.counts["committed"] > 100
        assert workload.counts["rolled back"] > 0
