"""The shop's customers and clerks: transactions that keep changing it until stopped.

Each writer has a connection of its own and does one deed after the other, chosen
by weight: orders are placed, paid and cancelled, prices changed without touching
the long descriptions, keys renamed, rows moved between partitions, carts filled
and truncated, and some transactions, or parts of them, rolled back. It is random
but not wild: the seed fixes what each writer tries, while what two writers do to
the same row is settled by Postgres.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psycopg

from penstock.demo.shop import CARTS, NOISE, sized


@dataclass(frozen=True, slots=True)
class _Deed:
    """One kind of transaction: how often it is chosen, and what it does.

    `outcome` is what is counted: `rolled back` transactions leave no trace.
    """

    weight: int
    outcome: str
    do: Callable[[psycopg.Connection[Any], random.Random], None]


def _place_order(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    placed_on = f"2025-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
    note = chance.choice([None, "gift wrap, please", "ring twice; 'softly'"])
    row = connection.execute(
        "INSERT INTO orders (placed_on, customer_id, status, total, note, placed_at)"
        " VALUES (%s, %s, 'placed', %s, %s, clock_timestamp()) RETURNING id",
        [placed_on, chance.randint(1, 20_000), f"{chance.uniform(1, 900):.4f}", note],
    ).fetchone()
    assert row is not None
    for line in range(1, chance.randint(2, 6)):
        connection.execute(
            "INSERT INTO order_lines VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [
                row[0],
                line,
                f"SKU-{chance.randint(1, 2000):06}",
                chance.randint(1, 9),
                f"{chance.uniform(1, 300):.2f}",
                chance.choice([None, 0.1, 0.25]),
                chance.choice([None, True, False]),
            ],
        )


def _advance_orders(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    first = chance.randint(1, 50_000)
    connection.execute(
        "UPDATE orders SET status = CASE status WHEN 'placed' THEN 'paid'"
        " WHEN 'paid' THEN 'shipped' ELSE 'returned' END::order_status,"
        " note = CASE WHEN status = 'paid' THEN NULL ELSE note END"
        " WHERE id BETWEEN %s AND %s",
        [first, first + chance.randint(0, 30)],
    )


def _reprice(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    # The descriptions stay as they are, and so are not resent.
    connection.execute(
        "UPDATE products SET price = round(price * %s, 2) + 0.01, updated_at = clock_timestamp(),"
        " weight = weight / 3 WHERE sku BETWEEN %s AND %s",
        [f"{chance.uniform(0.8, 1.2):.3f}", *_skus(chance, 10)],
    )


def _rewrite_description(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    seed, blocks = chance.random(), chance.choice([0, 4, 100, 300])
    noise = NOISE.format(seed="%s::text", blocks="%s")
    connection.execute(
        f"UPDATE products SET description = {noise} WHERE sku BETWEEN %s AND %s".encode(),
        [seed, blocks, *_skus(chance, 2)],
    )


def _edit_customers(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    first = chance.randint(1, 20_000)
    connection.execute(
        "UPDATE customers SET credit = credit + 1.25, email = nullif(email, %s),"
        " preferences = coalesce(preferences, '{}') || jsonb_build_object('seen', %s::int),"
        " tags = tags || CASE WHEN cardinality(tags) < 6 THEN ARRAY[%s, NULL] ELSE '{}' END,"
        " avatar = decode(md5(%s::text), 'hex') WHERE id BETWEEN %s AND %s",
        [
            f"c{first}@example.org",
            chance.randint(1, 99),
            chance.choice(["new", "{curly}", "a,b", 'q"uote', "NULL"]),
            first,
            first,
            first + chance.randint(0, 20),
        ],
    )


def _rename_product(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    low, high = _skus(chance, 2)
    connection.execute(
        "UPDATE products SET sku = CASE WHEN sku LIKE '%%/R' THEN left(sku, -2)"
        " ELSE sku || '/R' END WHERE sku BETWEEN %s AND %s",
        [low, high],
    )


def _renumber_customer(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    connection.execute(
        "UPDATE customers SET id = nextval(pg_get_serial_sequence('customers', 'id'))"
        " WHERE id = %s",
        [chance.randint(1, 22_000)],
    )


def _move_order(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    # Half of these land in another partition, where they are a delete and an insert.
    connection.execute(
        "UPDATE orders SET placed_on = '2025-01-01'::date + (placed_on - '2025-01-01' + 45) %% 365"
        " WHERE id = %s",
        [chance.randint(1, 50_000)],
    )


def _cancel_orders(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    first = chance.randint(1, 50_000)
    bounds = [first, first + chance.randint(0, 4)]
    connection.execute("DELETE FROM order_lines WHERE order_id BETWEEN %s AND %s", bounds)
    connection.execute("DELETE FROM orders WHERE id BETWEEN %s AND %s", bounds)


def _forget_customer(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    connection.execute("DELETE FROM customers WHERE id = %s", [chance.randint(1, 22_000)])


def _replace_line(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    order = chance.randint(1, 40_000)
    connection.execute("DELETE FROM order_lines WHERE order_id = %s AND line = 1", [order])
    connection.execute(
        "INSERT INTO order_lines VALUES (%s, 1, 'SKU-000001', 1, 9.99, 0.1, true)"
        " ON CONFLICT DO NOTHING",
        [order],
    )


def _fill_carts(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    connection.execute(sized(CARTS, chance.randint(1, 40)))


def _empty_carts(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    connection.execute("TRUNCATE carts")
    if chance.random() < 0.5:
        _fill_carts(connection, chance)


def _change_mind(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    _place_order(connection, chance)
    _edit_customers(connection, chance)
    raise psycopg.Rollback


def _change_half_a_mind(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    _place_order(connection, chance)
    with connection.transaction(force_rollback=True):
        _reprice(connection, chance)
    _place_order(connection, chance)


def _skus(chance: random.Random, most: int) -> tuple[str, str]:
    first = chance.randint(1, 2000)
    return f"SKU-{first:06}", f"SKU-{first + chance.randint(0, most):06}/~"


_DEEDS = (
    _Deed(30, "committed", _place_order),
    _Deed(14, "committed", _advance_orders),
    _Deed(10, "committed", _reprice),
    _Deed(2, "committed", _rewrite_description),
    _Deed(10, "committed", _edit_customers),
    _Deed(4, "committed", _rename_product),
    _Deed(4, "committed", _renumber_customer),
    _Deed(5, "committed", _move_order),
    _Deed(6, "committed", _cancel_orders),
    _Deed(4, "committed", _forget_customer),
    _Deed(4, "committed", _replace_line),
    _Deed(6, "committed", _fill_carts),
    _Deed(1, "truncated", _empty_carts),
    _Deed(4, "rolled back", _change_mind),
    _Deed(3, "committed", _change_half_a_mind),
)


class Workload:
    """Writers that change the shop until `stop`; a context manager that starts and stops them.

    `counts` says how many transactions were committed, rolled back and undone by
    a deadlock, and how many tables were truncated.
    """

    def __init__(
        self, dsn: str, *, writers: int = 2, pause: float = 0.01, seed: int | None = None
    ) -> None:
        self._dsn = dsn
        self._pause = pause
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self.counts: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._run, args=(chance,), name=f"shop-writer-{n}", daemon=True)
            for n, chance in enumerate(_chances(writers, seed), start=1)
        ]

    def start(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Let running transactions end, and return when all have. Raises what a writer raised."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def running(self) -> bool:
        """Whether every writer is at work."""
        return all(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, chance: random.Random) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._stop.wait(self._pause * chance.random() * 2):
                    outcome = self._once(connection, chance)
                    with self._lock:
                        self.counts[outcome] += 1
        except Exception as error:
            self._failure = error

    def _once(self, connection: psycopg.Connection[Any], chance: random.Random) -> str:
        deed = chance.choices(_DEEDS, [each.weight for each in _DEEDS])[0]
        try:
            with connection.transaction():
                deed.do(connection, chance)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            return "undone"
        return deed.outcome


def _chances(writers: int, seed: int | None) -> list[random.Random]:
    source = random.Random(seed)
    return [random.Random(source.random()) for _ in range(writers)]
