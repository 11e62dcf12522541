"""Partitions that are sent under their root's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline.copier import Copier
from penstock.pipeline.requests import Action, Request, Requests
from penstock.postgres.catalog import published_tables
from penstock.postgres.ddl_triggers import uninstall
from penstock.postgres.preflight import preflight
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.publication_drift.terms import Partition
from penstock.states import Errored
from penstock.testing.postgres import wait_for
from tests.pipeline.conftest import TIMEOUT
from tests.pipeline.published import LOOSE, PARTS, Replica, copies

if TYPE_CHECKING:
    from tests.conftest import Database


def _names(partitions: dict[int, Partition]) -> list[str]:
    return [partition.name for partition in partitions.values()]


def test_that_tables_that_were_created_as_partitions_do_not_count_as_attached(
    database: Database,
) -> None:
    with database.connect() as connection:
        for statement in (
            *(statement.format("parts") for statement in PARTS),
            *(statement.format("loose", "x") for statement in LOOSE),
            "CREATE PUBLICATION pub FOR TABLE parts WITH (publish_via_partition_root)",
        ):
            connection.execute(statement.encode())

        def terms() -> Any:
            (table,) = published_tables(connection, "pub")
            return table.terms

        before = terms()
        assert not any(part.attached for part in before.partitions.values())
        connection.execute("CREATE TABLE parts_w PARTITION OF parts FOR VALUES IN ('w')")
        created = terms()
        assert before.broken_by(created) is None
        assert not before.joined_by(created)
        connection.execute("ALTER TABLE parts_w ALTER v SET NOT NULL, ADD CHECK (v < 1000)")
        connection.execute("VACUUM FREEZE pg_attribute, pg_inherits, parts_w")
        assert before.broken_by(terms()) is None
        assert not before.joined_by(terms())
        connection.execute("ALTER TABLE parts ATTACH PARTITION loose FOR VALUES IN ('x')")
        attached = terms()
        assert _names(created.joined_by(attached)) == ["public.loose"]
        connection.execute("ALTER TABLE parts DETACH PARTITION loose")
        assert "detached" in str(attached.broken_by(terms()))
        connection.execute("ALTER TABLE parts ATTACH PARTITION loose FOR VALUES IN ('x')")
        assert "detached" in str(attached.broken_by(terms())), "and what happened meanwhile"
        assert type(attached).from_json(attached.to_json()) == attached

        created = terms()
        with connection.transaction():
            for statement in LOOSE:
                connection.execute(statement.format("quick", "q").encode())
            connection.execute("ALTER TABLE parts ATTACH PARTITION quick FOR VALUES IN ('q')")
        assert _names(created.joined_by(terms())) == ["public.quick"]
        created = terms()
        with connection.transaction():
            connection.execute("CREATE TABLE parts_y PARTITION OF parts FOR VALUES IN ('y')")
            connection.execute("ALTER TABLE parts_y ALTER v SET DEFAULT 5, ALTER id SET DEFAULT 6")
            connection.execute("INSERT INTO parts VALUES (9, 'y', 9)")
        assert not created.joined_by(terms())


def test_a_partition_that_came_and_went_between_two_looks(replica: Replica) -> None:
    """The catalog does not have it any more, but the stream has told of it."""
    replica.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE parts (id int, k text, m mood, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
        "CREATE TABLE parts_n PARTITION OF parts FOR VALUES IN ('n')",
        "CREATE TABLE other (id int PRIMARY KEY, m mood)",
        "CREATE PUBLICATION pub FOR TABLE parts, other WITH (publish_via_partition_root)",
    )
    passing = (
        "CREATE TABLE passing PARTITION OF parts FOR VALUES IN ('p')",
        "INSERT INTO parts VALUES (1, 'n', 'sad'), (2, 'p', 'glad')",
        "DROP TABLE passing",
    )
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        # Both are told of before one TRUNCATE, and neither is a partition of the other.
        replica.execute("TRUNCATE parts, other", *passing[:1])
        replica.execute("INSERT INTO parts VALUES (3, 'p', NULL)", "INSERT INTO other VALUES (1)")
        replica.expect(pipeline, "parts: SELECT * FROM parts", "other")
        assert copies(replica.source, "parts") == copies(replica.source, "other") == 1
        replica.execute("DROP TABLE passing")
        replica.expect(pipeline, "parts: SELECT * FROM parts")
        assert copies(replica.source, "parts") == 2
    replica.execute(*passing)
    with replica.pipeline() as pipeline:
        replica.expect(pipeline, "parts: SELECT id, k, m::text FROM parts", "other")
        assert copies(replica.source, "parts") == 3
        replica.execute("INSERT INTO parts VALUES (4, 'n', 'sad')")
        replica.expect(pipeline, "parts: SELECT id, k, m::text FROM parts", "other")
        assert copies(replica.source, "parts") == 3, "one copy is enough"
    with replica.pipeline() as pipeline:
        replica.execute("INSERT INTO parts VALUES (5, 'n', 'sad')")
        replica.expect(pipeline, "parts: SELECT id, k, m::text FROM parts", "other")
        assert copies(replica.source, "parts") == 3, "also after a restart"


def test_partitions_whose_identity_is_not_that_of_their_root(replica: Replica) -> None:
    """Postgres logs by the one and labels by the other."""
    long = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g)"
    replica.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, v int NOT NULL, note text)"
        " PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE parts ALTER note SET STORAGE external",
        "ALTER TABLE parts_1 ALTER note SET STORAGE external",
        f"INSERT INTO parts SELECT g, g, {long} FROM generate_series(1, 6) g",
        "CREATE UNIQUE INDEX by_v ON parts_1 (v)",
        "CREATE TABLE bag (id int NOT NULL, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE bag_1 PARTITION OF bag FOR VALUES FROM (0) TO (100)",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("bag", "bag_1")),
        "INSERT INTO bag VALUES (1, 'one'), (1, NULL), (2, 'two')",
        "CREATE PUBLICATION pub FOR TABLE parts, bag WITH (publish_via_partition_root)",
    )
    rows = "parts: SELECT * FROM parts"
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        replica.execute(
            "ALTER TABLE parts REPLICA IDENTITY FULL",  # which its partition does not inherit
            "UPDATE parts SET id = 11 WHERE id = 1",
            "UPDATE parts SET v = 12 WHERE id = 2",
            "DELETE FROM parts WHERE id = 3",
            "DELETE FROM bag WHERE note IS NULL",
        )
        replica.expect(pipeline, rows, "bag: SELECT * FROM bag")
        replica.execute(
            "ALTER TABLE bag_1 ADD PRIMARY KEY (id), REPLICA IDENTITY DEFAULT",
            "UPDATE bag SET note = 'other' WHERE id = 1",
        )
        wait_for(lambda: pipeline.status().table("public.bag").state.name == "errored")
        replica.execute(
            "ALTER TABLE parts_1 REPLICA IDENTITY USING INDEX by_v",
            "UPDATE parts SET id = 14 WHERE id = 4",
        )
        wait_for(lambda: pipeline.status().table("public.parts").state.name == "errored")
        state = pipeline.status().table("public.parts").state
        assert isinstance(state, Errored)
        assert "partition public.parts_1 does not cover the key" in state.reason
        assert "penstock doctor" in (state.solution or "")
        findings = {finding.subject for finding in preflight(pipeline.config)}
        assert {"partition public.parts_1", "partition public.bag_1"} <= findings
        table = pipeline.status().table("public.parts").id
        requests = Requests(pipeline.config.journal_path)
        requests.add(Request(table, Action.RESYNC))
        hint = "REPLICA IDENTITY DEFAULT"
        wait_for(
            lambda: (
                isinstance(now := pipeline.status().table("public.parts").state, Errored)
                and hint in (now.solution or "")
            ),
            "the copy to be refused",
        )
        replica.execute("ALTER TABLE parts_1 REPLICA IDENTITY DEFAULT")
        requests.add(Request(table, Action.RESYNC))
        wait_for(lambda: pipeline.status().table("public.parts").state.name != "errored")
        replica.execute("UPDATE parts SET id = 15 WHERE id = 5")
        wait_for(lambda: replica.mirrored(rows) == replica.published(rows))
    replica.execute(
        "DROP PUBLICATION pub",
        "CREATE TABLE log (id int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE log_1 PARTITION OF log (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (100)",
        "CREATE PUBLICATION pub FOR TABLE log"
        " WITH (publish = 'insert', publish_via_partition_root)",
    )
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        replica.execute("INSERT INTO log VALUES (1)")
        replica.expect(pipeline, "log: SELECT * FROM log")


def test_a_snapshot_locks_nothing(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or who waits to alter a table would keep out those who read it for the copy."""
    replica.execute(
        *(statement.format("parts") for statement in PARTS),
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE PUBLICATION pub FOR TABLE parts, plain WITH (publish_via_partition_root)",
    )
    locked: list[Any] = []
    read = Copier._read

    def watched(copier: Copier, snapshot: ExportedSnapshot, *arguments: Any) -> Any:
        locks = "SELECT relation::regclass FROM pg_locks WHERE pid = pg_backend_pid()"
        locked.extend(snapshot.connection.execute(f"{locks} AND relation >= 16384").fetchall())
        return read(copier, snapshot, *arguments)

    monkeypatch.setattr(Copier, "_read", watched)
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
    assert locked == []


@pytest.mark.parametrize("announced", [True, False])
def test_a_root_that_is_renamed_is_followed_under_its_new_name(
    replica: Replica, announced: bool
) -> None:
    """Postgres does not tell of it, and goes on under the old name."""
    replica.execute(
        *(statement.format("parts") for statement in PARTS),
        "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root)",
    )
    with replica.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        replica.execute("INSERT INTO parts VALUES (5, 'n', 5)")
        replica.expect(pipeline, "parts: SELECT * FROM parts")
        if not announced:
            uninstall(replica.source.connection)
        replica.execute("ALTER TABLE parts RENAME TO named", "UPDATE named SET v = 7 WHERE id = 5")
        replica.expect(pipeline, "named: SELECT * FROM named")
        made = copies(replica.source, "named")
        for number in range(10, 13):
            replica.execute(f"INSERT INTO named VALUES ({number}, 'n', 1)")
            replica.expect(pipeline, "named: SELECT * FROM named")
        assert copies(replica.source, "named") == made
