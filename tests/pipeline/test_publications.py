"""What a publication can be, and what can happen to its tables: the destination follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PenstockError
from penstock.postgres.catalog import published_tables
from penstock.testing.postgres import wait_for
from tests.conftest import COMPLAINTS
from tests.pipeline.conftest import TIMEOUT
from tests.pipeline.published import LOOSE, PARTS, Replica, Rows, copies

if TYPE_CHECKING:
    from tests.conftest import Database


FILTERED = (  # with large values outside of the filter
    "CREATE TABLE t (area int, id int, big text, PRIMARY KEY (area, id))",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO t VALUES (0, 1, repeat('x', 9000)), (0, 2, repeat('y', 9000))",
    "CREATE PUBLICATION pub FOR TABLE t WHERE (area = 1)",
)


@pytest.mark.since(15)
def test_filters_lists_inheritance_and_partitions_under_their_root(replica: Replica) -> None:
    roots = ["attached", "cut", "detached", "dropped"]
    replica.execute(
        "CREATE TABLE filtered (id int PRIMARY KEY, v int)",
        "ALTER TABLE filtered REPLICA IDENTITY FULL",
        "INSERT INTO filtered SELECT g, g FROM generate_series(1, 20) g",
        "CREATE TABLE listed (id int PRIMARY KEY, shown text, secret text)",
        "INSERT INTO listed VALUES (1, 'a', 'x'), (2, 'b', 'y')",
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TYPE pair AS (m mood, n int)",
        "CREATE TABLE moods (id int PRIMARY KEY, m mood, p pair)",
        "INSERT INTO moods VALUES (1, 'sad', ('sad', 1)), (2, 'glad', NULL)",
        "CREATE TABLE parent (id int PRIMARY KEY, v int)",
        "CREATE TABLE child (w int, PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1, 1)",
        "INSERT INTO child VALUES (2, 2, 2)",
        *(statement.format(root) for root in roots for statement in PARTS),
        *(statement.format("loose", "x") for statement in LOOSE),
        f"""CREATE PUBLICATION pub FOR TABLE filtered WHERE (v > 10), listed (id, shown),
           moods, parent, {", ".join(roots)} WITH (publish_via_partition_root)""",
    )
    everything = (
        "filtered: SELECT * FROM filtered WHERE v > 10",
        "listed: SELECT id, shown FROM listed",
        "moods: SELECT id, m::text, p::text FROM moods",
        "parent",
        "child",
        *(f"{root}: SELECT * FROM {root}" for root in roots),
    )
    names = sorted(each.partition(":")[0] for each in everything)
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        assert replica.tables(pipeline) == names
        assert replica.mirrored(*everything) == replica.published(*everything)
        replica.execute(
            "UPDATE filtered SET v = 100 WHERE id = 1",  # enters
            "UPDATE filtered SET v = 0 WHERE id = 20",  # leaves
            "UPDATE filtered SET v = 50, id = 119 WHERE id = 19",
            "UPDATE filtered SET id = 118, v = 1 WHERE id = 18",
            "DELETE FROM filtered WHERE id IN (2, 17)",
            "INSERT INTO filtered VALUES (30, 30), (31, 1)",
            "UPDATE listed SET secret = 'z', shown = 'c' WHERE id = 1",
            "INSERT INTO listed VALUES (3, 'd', 'w')",
            "ALTER TYPE mood ADD VALUE 'calm'",
            "UPDATE parent SET v = v + 10",  # the child's rows too
            "INSERT INTO child VALUES (3, 3, 3)",
            "UPDATE cut SET area = 't', v = 9 WHERE id = 1",  # to another partition
            "UPDATE cut SET v = 8 WHERE id = 2",
            "CREATE TABLE cut_w PARTITION OF cut FOR VALUES IN ('w')",
            "INSERT INTO cut VALUES (4, 'w', 4), (5, 'n', 5)",
            "TRUNCATE attached",
            "INSERT INTO attached VALUES (6, 'n', 6)",
        )
        replica.expect(pipeline, *everything)
        assert replica.tables(pipeline) == names
        assert copies(replica.source, "cut") == 1, "a partition that is made is no reason"
        assert copies(replica.source, "moods") == 1, "a label that is added is no reason"
        assert copies(replica.source, "attached") == 1, "the stream tells of a TRUNCATE"

        # What no change tells of. One writes with a label that is another when it commits.
        writer = replica.source.database.connect(autocommit=False)
        writer.execute("INSERT INTO moods VALUES (3, 'sad')")
        replica.execute(
            "ALTER TABLE attached ATTACH PARTITION loose FOR VALUES IN ('x')",
            "INSERT INTO attached VALUES (52, 'x', 7)",
            "TRUNCATE cut_deep_1",
            "ALTER TABLE detached DETACH PARTITION detached_n",
            "UPDATE detached SET v = v + 1",
            "DROP TABLE dropped_deep",
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'gloomy'",
            f"""ALTER PUBLICATION pub SET TABLE filtered WHERE (v > 50), listed (id, shown),
               moods, parent, {", ".join(roots)}""",
        )
        wait_for(lambda: pipeline.status().table("public.moods").state.name == "data_sync")
        writer.commit()
        writer.close()
        everything = ("filtered: SELECT * FROM filtered WHERE v > 50", *everything[1:])
        replica.expect(pipeline, *everything)
        assert copies(replica.source, "listed") == 1, "nothing was changed for it"
        assert copies(replica.source, "cut") == 2
        replica.execute(*(f"UPDATE {root} SET v = -v" for root in roots))
        replica.expect(pipeline, *everything)


def test_a_copy_for_other_terms_waits_for_those_who_wrote_on_the_old_ones(
    replica: Replica, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """What they wrote is sent, or not, as the filter was when they wrote it."""
    replica.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION pub FOR TABLE t WHERE (id < 10)",
    )
    caplog.set_level("INFO", "penstock.pipeline.copier")

    def copied_or_waiting() -> bool:
        return copies(replica.source, "t") == 2 or "waiting for transactions" in caplog.text

    with replica.pipeline() as pipeline, database.connect() as writer:
        pipeline.wait_until_ready(TIMEOUT)
        with writer.transaction():
            writer.execute("INSERT INTO t VALUES (11)")
            replica.execute("ALTER PUBLICATION pub SET TABLE t WHERE (id > 10)")
            wait_for(copied_or_waiting)
        replica.expect(pipeline, "t: SELECT * FROM t WHERE id > 10")


@pytest.mark.campaign
def test_schemas_and_partitions_by_themselves(replica: Replica) -> None:
    replica.execute(
        "CREATE SCHEMA shop",
        "CREATE SCHEMA attic",
        "SET search_path TO shop",
        *(statement.format("parts") for statement in PARTS),
        *(statement.format("loose", "x") for statement in LOOSE),
        "CREATE TABLE swapped_1 (id int PRIMARY KEY, v text)",
        "CREATE TABLE swapped_2 (id int PRIMARY KEY, v text)",
        "CREATE TABLE renamed (id int PRIMARY KEY, v text)",
        "CREATE TABLE moved (id int PRIMARY KEY, v text)",
        "CREATE TABLE dropped (id int PRIMARY KEY, v text)",
        "CREATE TABLE again (id int PRIMARY KEY, v text)",
        "INSERT INTO swapped_1 VALUES (1, 'one')",
        "INSERT INTO swapped_2 VALUES (2, 'two')",
        "INSERT INTO renamed VALUES (1, 'r')",
        "INSERT INTO moved VALUES (1, 'm')",
        "INSERT INTO dropped VALUES (1, 'd')",
        "INSERT INTO again VALUES (1, 'old')",
        "CREATE TABLE attic.old (id int PRIMARY KEY, v text)",
        "INSERT INTO attic.old VALUES (1, 'found')",
        "CREATE PUBLICATION pub FOR TABLES IN SCHEMA shop",
    )
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        replica.expect(
            pipeline,
            *("shop." + name for name in ("parts_n", "parts_deep_1", "parts_deep_2", "loose")),
        )
        assert "shop.parts" not in replica.tables(pipeline)
        replica.execute(
            "UPDATE parts SET area = 't', v = 9 WHERE id = 1",  # a delete here, an insert there
            "ALTER TABLE parts ATTACH PARTITION loose FOR VALUES IN ('x')",
            "ALTER TABLE parts DETACH PARTITION parts_n",
            "INSERT INTO parts_n VALUES (3, 'n', 3)",
            "INSERT INTO parts VALUES (52, 'x', 7)",
            "DROP TABLE parts_deep_2",
            "INSERT INTO renamed VALUES (2, 'before')",
            "ALTER TABLE renamed RENAME TO renamed_2",
            "INSERT INTO renamed_2 VALUES (3, 'after')",
            "INSERT INTO swapped_1 VALUES (10, 'before')",
            "INSERT INTO swapped_2 VALUES (20, 'before')",
            "ALTER TABLE swapped_1 RENAME TO swapped_0",
            "ALTER TABLE swapped_2 RENAME TO swapped_1",
            "ALTER TABLE swapped_0 RENAME TO swapped_2",
            "INSERT INTO swapped_1 VALUES (200, 'after')",
            "INSERT INTO swapped_2 VALUES (100, 'after')",
            "ALTER TABLE moved SET SCHEMA attic",
            "INSERT INTO attic.moved VALUES (2, 'not for you')",
            "ALTER TABLE attic.old SET SCHEMA shop",
            "DROP TABLE dropped",
            "DROP TABLE again",
            "CREATE TABLE again (id int PRIMARY KEY, other int)",
            "INSERT INTO again VALUES (5, 5)",
        )
        left = ["dropped", "moved", "parts_deep_2", "renamed", "swapped_0"]
        wait_for(lambda: not {f"shop.{name}" for name in left} & set(replica.tables(pipeline)))
        replica.expect(
            pipeline,
            *(
                "shop." + name
                for name in [
                    "parts_n",
                    "parts_deep_1",
                    "loose",
                    "renamed_2",
                    "swapped_1",
                    "swapped_2",
                    "old",
                    "again",
                ]
            ),
        )
        # What has left stays as it was.
        assert replica.mirrored("shop.moved") == {"shop.moved": [(1, "m")]}
        assert replica.mirrored("shop.dropped") == {"shop.dropped": [(1, "d")]}


@pytest.mark.parametrize(
    ("publish", "before", "after"),
    [
        ("insert, truncate", [(1, "a"), (2, "b"), (3, "c"), (4, "d")], [(9, "z")]),
        ("update, delete", [(1, "changed"), (3, "c")], [(1, "changed"), (3, "c")]),
    ],
)
def test_only_what_is_published_arrives(
    replica: Replica, publish: str, before: Rows, after: Rows
) -> None:
    """As with a subscription: what was there, and then what is sent."""
    replica.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        f"CREATE PUBLICATION pub FOR ALL TABLES WITH (publish = '{publish}')",
    )
    already = len(replica.source.database.logged())
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        assert replica.mirrored("t") == replica.published("t")
        replica.execute(
            "INSERT INTO t VALUES (4, 'd')",
            "UPDATE t SET v = 'changed' WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        )
        replica.source.catch_up(pipeline)
        assert replica.mirrored("t") == {"t": before}
        replica.execute("TRUNCATE t", "INSERT INTO t VALUES (9, 'z')")
        replica.source.catch_up(pipeline)
        assert replica.mirrored("t") == {"t": after}
    written = replica.source.database.logged()[already:]
    assert not [line for line in written if any(word in line for word in COMPLAINTS)]


@pytest.mark.since(15)
def test_a_row_that_comes_into_the_filter_without_its_large_value(replica: Replica) -> None:
    replica.execute(*FILTERED)
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        replica.execute("UPDATE t SET area = 1 WHERE id = 1")
        wait_for(lambda: pipeline.status().table("public.t").error is not None)
        error = pipeline.status().table("public.t").error
        assert error is not None
        assert "did not send all values of a new row: big" in error.reason
        assert "REPLICA IDENTITY FULL" in (error.solution or "")
    assert replica.mirrored("t") == {"t": []}


@pytest.mark.since(15)
def test_a_row_that_comes_into_the_filter_whole(replica: Replica) -> None:
    replica.execute(*FILTERED, "ALTER TABLE t REPLICA IDENTITY FULL")
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        replica.execute("UPDATE t SET area = 1 WHERE id = 1")
        replica.expect(pipeline, "t: SELECT * FROM t WHERE area = 1")


def test_operations_that_are_published_again(replica: Replica) -> None:
    """What was deleted in between is known to nobody."""
    replica.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "CREATE PUBLICATION pub FOR TABLE t WITH (publish = 'insert, update')",
    )
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        replica.execute("DELETE FROM t WHERE id < 3", "INSERT INTO t VALUES (1, 'again')")
        replica.source.catch_up(pipeline)
        assert replica.mirrored("t") == {"t": [(1, "again"), (2, "b"), (3, "c")]}
        replica.execute("ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')")
        replica.expect(pipeline, "t")


@pytest.mark.campaign
def test_what_changed_while_no_pipeline_ran(replica: Replica) -> None:
    replica.execute(
        *(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v int)"
            for name in ("out", "filtered", "same")
        ),
        *(f"INSERT INTO {name} VALUES (1, 1), (2, 2)" for name in ("out", "filtered", "same")),
        *(statement.format("parts") for statement in PARTS),
        *(statement.format("loose", "x") for statement in LOOSE),
        "CREATE PUBLICATION pub FOR TABLE out, filtered, same, parts"
        " WITH (publish_via_partition_root)",
    )
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
    replica.execute(
        "ALTER PUBLICATION pub DROP TABLE out",
        "INSERT INTO out VALUES (3, 3)",
        "ALTER PUBLICATION pub ADD TABLE out",
        "ALTER PUBLICATION pub SET TABLE out, filtered WHERE (id > 1), same, parts",
        "INSERT INTO same VALUES (3, 3)",
        "ALTER TABLE parts ATTACH PARTITION loose FOR VALUES IN ('x')",
        "ALTER TABLE parts DETACH PARTITION parts_n",
    )
    everything = (
        "out",
        "same",
        "filtered: SELECT * FROM filtered WHERE id > 1",
        "parts: SELECT * FROM parts",
    )
    before = copies(replica.source, "same")
    with replica.pipeline() as pipeline:
        replica.expect(pipeline, *everything)
        # Partitions change their names, not their rows; their root gives way to them.
        replica.execute(
            "ALTER PUBLICATION pub SET (publish_via_partition_root = false)",
            "UPDATE parts SET v = v + 1",
        )
        replica.expect(pipeline, *everything[:-1], "loose", "parts_deep_1", "parts_deep_2")
        wait_for(lambda: "parts" not in replica.tables(pipeline))
        assert copies(replica.source, "same") == before

        replica.execute("DROP PUBLICATION pub")
        with pytest.raises(PenstockError, match="the publication pub is gone"):
            pipeline.wait()
    replica.execute("INSERT INTO same VALUES (4, 4)", "CREATE PUBLICATION pub FOR TABLE same")
    with replica.pipeline() as pipeline:
        replica.expect(pipeline, "same")


def test_that_being_elsewhere_for_a_moment_breaks_the_terms(database: Database) -> None:
    with database.connect() as connection:
        for statement in (
            "CREATE SCHEMA attic",
            "CREATE TABLE moved (id int PRIMARY KEY)",
            *(statement.format("parts") for statement in PARTS),
            "CREATE PUBLICATION pub FOR TABLES IN SCHEMA public WITH (publish_via_partition_root)",
        ):
            connection.execute(statement.encode())

        def terms() -> dict[str, Any]:
            return {t.schema.name.name: t.terms for t in published_tables(connection, "pub")}

        before = terms()
        assert set(before) == {"moved", "parts"}
        connection.execute("ALTER TABLE moved RENAME TO other")
        connection.execute("ALTER TABLE other RENAME TO moved")
        connection.execute("VACUUM FULL pg_depend")
        assert before["moved"].broken_by(terms()["moved"]) is None
        connection.execute("ALTER TABLE moved SET SCHEMA attic")
        connection.execute("ALTER TABLE attic.moved SET SCHEMA public")
        assert before["moved"].broken_by(terms()["moved"]) == "it was put into the publication anew"

        kept, before = before["parts"], terms()
        connection.execute("ALTER PUBLICATION pub SET (publish_via_partition_root = false)")
        apart = terms()
        assert before["moved"].broken_by(apart["moved"]) is None, "which no partition concerns"
        connection.execute("ALTER PUBLICATION pub SET (publish_via_partition_root = true)")
        now = terms()
        assert kept.broken_by(now["parts"]) == "the publication's options were set anew"
        assert apart["moved"].broken_by(now["moved"]) is None
        connection.execute("ALTER PUBLICATION pub SET (publish_via_partition_root = false)")
        assert "options" in str(apart["parts_n"].broken_by(terms()["parts_n"]))
        kept = terms()["moved"]
        connection.execute("ALTER PUBLICATION pub SET (publish = 'insert')")
        connection.execute("ALTER PUBLICATION pub SET (publish = 'insert,update,delete,truncate')")
        assert kept.broken_by(terms()["moved"]) == "the publication's options were set anew"
        assert type(kept).from_json(kept.to_json()) == kept

        connection.execute("CREATE TABLE loose (LIKE parts)")
        connection.execute("ALTER PUBLICATION pub SET (publish_via_partition_root = true)")
        kept = terms()["loose"]
        connection.execute("ALTER TABLE loose ALTER id SET DEFAULT 1, DROP v, ADD v int")
        assert kept.broken_by(terms()["loose"]) is None
        connection.execute("ALTER TABLE parts ATTACH PARTITION loose FOR VALUES IN ('x')")
        connection.execute("ALTER TABLE parts DETACH PARTITION loose")
        assert kept.broken_by(terms()["loose"]) == "it was attached or detached"
