"""The whole path into Delta tables."""

from __future__ import annotations

import pytest

from penstock.pipeline import applier
from penstock.testing.postgres import wait_for
from tests.pipeline.conftest import TIMEOUT, Lake, Source

MOST_COLUMNS = 1_600


def test_delta_tables_equal_the_source_across_a_restart(source: Source, lake: Lake) -> None:
    source.execute("INSERT INTO a SELECT g, 'more' FROM generate_series(101, 5000) g")
    with lake.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        assert lake.rows("a") == source.rows("a")
        assert lake.rows("b") == []
        source.execute(
            "INSERT INTO b SELECT g, 'b' FROM generate_series(1, 50) g",
            "UPDATE a SET v = 'changed' WHERE id % 7 = 0",
            "UPDATE a SET id = -id WHERE id < 10",
            "DELETE FROM a WHERE id % 11 = 0",
        )
        source.catch_up(pipeline)
        assert lake.rows("a") == source.rows("a")
        assert lake.rows("b") == source.rows("b")
    source.execute("UPDATE b SET v = 'while it was down' WHERE id < 5", "TRUNCATE a")
    source.execute("INSERT INTO a VALUES (1, 'after the truncate')")
    with lake.pipeline() as pipeline:
        source.catch_up(pipeline)
        assert lake.rows("a") == source.rows("a")
        assert lake.rows("b") == source.rows("b")


def test_a_table_that_is_not_to_be_copied_is_not_emptied_when_it_comes_back(
    source: Source, lake: Lake
) -> None:
    with lake.pipeline(table_sync_copy={"mode": "except", "tables": ["public.b"]}) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO b VALUES (1, 'streamed')")
        source.catch_up(pipeline)
        source.execute("ALTER PUBLICATION pub DROP TABLE b")
        wait_for(lambda: [table.name for table in pipeline.status().tables] == ["public.a"])
        source.execute("ALTER PUBLICATION pub ADD TABLE b")
        wait_for(lambda: len(pipeline.status().tables) == 2)
        wait_for(lambda: pipeline.status().table("public.b").state.name in ("errored", "ready"))
        error = pipeline.status().table("public.b").error
        assert error is not None
        assert "table_sync_copy leaves it out" in error.reason
        assert lake.rows("b") == [{"id": 1, "v": "streamed"}]


def test_keys_that_come_again_where_deletes_are_not_published(source: Source, lake: Lake) -> None:
    source.execute("ALTER PUBLICATION pub SET (publish = 'insert, update')")
    with lake.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("DELETE FROM a", "INSERT INTO a VALUES (1, 'again'), (2, 'again')")
        source.catch_up(pipeline)
        kept = [{"id": n, "v": f"a{n}"} for n in range(3, 101)]
        assert lake.rows("a") == [{"id": 1, "v": "again"}, {"id": 2, "v": "again"}, *kept]


def test_a_batch_that_was_committed_but_not_recorded_is_not_applied_again(
    source: Source, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[str] = []

    def die_once(name: str) -> None:
        if name == "batch_committed" and not died:
            died.append(name)
            raise RuntimeError("died between the destination's commit and the cursor")

    monkeypatch.setattr(applier, "failpoint", die_once)
    with lake.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO b SELECT g, 'b' FROM generate_series(1, 50) g")
        source.catch_up(pipeline)
        assert died
        source.execute("INSERT INTO b VALUES (51, 'goes on')")
        source.catch_up(pipeline)
        assert lake.rows("b") == source.rows("b")


@pytest.mark.campaign
def test_a_table_with_as_many_columns_as_postgres_allows(source: Source, lake: Lake) -> None:
    columns = ", ".join(f"c{n} int" for n in range(1, MOST_COLUMNS))
    numbers = ", ".join(f"g * {n}" for n in range(1, MOST_COLUMNS))
    source.execute(
        f"CREATE TABLE wide (id int PRIMARY KEY, {columns})",
        f"INSERT INTO wide SELECT g, {numbers} FROM generate_series(1, 100) g",
        "ALTER PUBLICATION pub ADD TABLE wide",
    )
    with lake.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        assert lake.rows("wide") == source.rows("wide")
        source.execute(
            f"INSERT INTO wide SELECT g, {numbers} FROM generate_series(101, 110) g",
            "UPDATE wide SET c1 = NULL, c1599 = -1 WHERE id % 3 = 0",
            "UPDATE wide SET id = -id WHERE id % 5 = 0",
            "DELETE FROM wide WHERE id % 7 = 0",
        )
        source.catch_up(pipeline)
        assert lake.rows("wide") == source.rows("wide")
