"""The preflight names everything that is missing, each with the statement that mends it.

Where a remedy is a statement, the tests run it and look again: a remedy that
does not remedy is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from psycopg import pq

from penstock.config import PgConnection, PipelineConfig, TableSyncCopy
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.catalog import published_tables, table_schema
from penstock.postgres.connection import Session, connect, server_version
from penstock.postgres.copy import CtidRange, copy_range
from penstock.postgres.preflight import Finding, Severity, preflight, require
from penstock.postgres.preflight.identity import require_old_rows
from penstock.postgres.slots import waited_for
from penstock.testing import EmbeddedPostgres
from penstock.testing.postgres import wait_for

SLOT = "penstock_shop"


@pytest.fixture
def shop(session: Session) -> Session:
    """A schema, a table and a publication that nothing is wrong with."""
    published = "TABLES IN SCHEMA shop" if server_version(session) >= 150000 else "ALL TABLES"
    session.execute(f"""
        CREATE SCHEMA shop
            CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
        CREATE PUBLICATION pub FOR {published}
    """)
    return session


def config(source: PgConnection, **settings: object) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {"id": "shop", "publication_name": "pub", "pg_connection": source, **settings}
    )


def errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def about(findings: Sequence[Finding], subject: str) -> Finding:
    found = [finding for finding in findings if finding.subject == subject]
    assert len(found) == 1, [str(finding) for finding in findings]
    return found[0]


def subjects(findings: Sequence[Finding]) -> set[str]:
    return {finding.subject for finding in findings}


def remedy_works(session: Session, configuration: PipelineConfig, finding: Finding) -> None:
    session.execute(finding.remedy.encode())
    assert finding not in preflight(configuration)


def test_a_source_that_is_ready(shop: Session, source: PgConnection) -> None:
    findings = preflight(config(source))
    assert errors(findings) == []
    require(findings)
    assert subjects(findings) == {"max_slot_wal_keep_size"}


# The server


def test_no_connection_is_the_only_finding(source: PgConnection, tmp_path: Path) -> None:
    nowhere = source.model_copy(update={"host": str(tmp_path)})
    [finding] = preflight(config(nowhere))
    assert finding.kind is ErrorKind.SOURCE_CONNECTION
    assert str(tmp_path) in finding.problem
    with pytest.raises(PenstockError) as caught:
        require([finding])
    assert caught.value.kind is ErrorKind.SOURCE_CONNECTION
    assert caught.value.hint == finding.remedy


@pytest.mark.parametrize(
    ("version", "severity"), [(130012, Severity.ERROR), (190000, Severity.WARNING)]
)
def test_a_server_of_another_age(
    shop: Session,
    source: PgConnection,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    severity: Severity,
) -> None:
    monkeypatch.setattr("penstock.postgres.preflight.server.server_version", lambda _: version)
    finding = about(preflight(config(source)), "server")
    assert finding.severity is severity
    assert str(version // 10000) in finding.problem


def test_a_standby(shop: Session, source: PgConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.postgres.preflight.server.in_recovery", lambda _: True)
    assert about(preflight(config(source)), "server").severity is Severity.ERROR


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server where everything is too small."""
    settings = {
        "wal_level": "replica",
        "max_replication_slots": "1",
        "max_wal_senders": "1",
        "max_slot_wal_keep_size": "64MB",
        "idle_replication_slot_timeout": "3600s",
        "fsync": "off",
    }
    with EmbeddedPostgres(tmp_path, settings=settings) as server:
        yield server


def test_everything_that_is_missing_is_named_at_once(cramped: EmbeddedPostgres) -> None:
    source = PgConnection.model_validate({"uri": cramped.dsn()})
    with connect(source, "test") as session, closing(connect(source, "test", replication=True)):
        session.execute("SELECT pg_create_physical_replication_slot('taken')")
        session.execute("CREATE ROLE penstock_nobody LOGIN")
        nobody = source.model_copy(update={"user": "penstock_nobody"})
        findings = preflight(config(nobody))
        for finding in findings:
            # ALTER SYSTEM cannot run among other statements.
            for statement in finding.remedy.partition(" -- ")[0].split("; "):
                session.execute(statement.encode())
    assert subjects(errors(findings)) == {
        "wal_level",
        "max_replication_slots",
        "max_wal_senders",
        "role penstock_nobody",
        "publication pub",
    }
    warnings = {"max_slot_wal_keep_size", "idle_replication_slot_timeout", "event triggers"}
    assert subjects(findings) - subjects(errors(findings)) == warnings
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities), "errors come first"
    with pytest.raises(PenstockError) as caught:
        require(findings)
    for finding in errors(findings):
        assert finding.problem in str(caught.value)
        assert finding.remedy in str(caught.value)


def test_the_remedies_of_a_cramped_server_hold_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path, settings={"fsync": "off"}) as server:
        source = PgConnection.model_validate({"uri": server.dsn()})
        with connect(source, "test") as session:
            session.execute("ALTER SYSTEM SET wal_level = 'replica'")
            session.execute("CREATE TABLE public.a (id int PRIMARY KEY)")
            session.execute("CREATE PUBLICATION pub FOR ALL TABLES")
        server.stop()
        server.start()
        source = PgConnection.model_validate({"uri": server.dsn()})
        finding = about(preflight(config(source)), "wal_level")
        with connect(source, "test") as session:
            session.execute(finding.remedy.encode())
        server.stop()
        server.start()
        source = PgConnection.model_validate({"uri": server.dsn()})
        assert errors(preflight(config(source))) == []


def test_a_server_encoding_that_promises_nothing(server: EmbeddedPostgres) -> None:
    with server.connect() as session:
        session.execute("CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII'")
    try:
        source = PgConnection.model_validate({"uri": server.dsn("ascii")})
        assert about(preflight(config(source)), "server_encoding").severity is Severity.WARNING
    finally:
        server.drop_database("ascii")


# The role


def test_a_role_that_may_not_replicate(
    shop: Session, source: PgConnection, someone: PgConnection, role: str
) -> None:
    finding = about(preflight(config(someone)), f"role {role}")
    assert finding.kind is ErrorKind.SOURCE_PRIVILEGE
    assert finding.remedy == f'ALTER ROLE "{role}" REPLICATION;'
    remedy_works(shop, config(someone), finding)


def test_a_managed_service_grants_replication_by_membership(
    shop: Session, someone: PgConnection, role: str
) -> None:
    shop.execute("CREATE ROLE rds_replication")
    try:
        finding = about(preflight(config(someone)), f"role {role}")
        assert finding.remedy == f'GRANT rds_replication TO "{role}";'
        shop.execute(finding.remedy.encode())
        assert f"role {role}" not in subjects(preflight(config(someone)))
    finally:
        shop.execute("DROP ROLE rds_replication")


def test_tables_that_the_role_may_not_read(shop: Session, someone: PgConnection, role: str) -> None:
    shop.execute(f'ALTER ROLE "{role}" REPLICATION')
    shop.execute('CREATE TABLE shop."Od""d" (id int PRIMARY KEY)')
    usage, select = errors(preflight(config(someone)))
    assert usage.remedy == f'GRANT USAGE ON SCHEMA "shop" TO "{role}";'
    assert 'GRANT SELECT ON "shop"."Od""d", "shop"."customers" TO' in select.remedy
    assert {usage.kind, select.kind} == {ErrorKind.SOURCE_PRIVILEGE}
    shop.execute((usage.remedy + select.remedy).encode())
    assert errors(preflight(config(someone))) == []


@pytest.mark.since(15)
def test_reading_the_columns_that_a_copy_reads_is_enough(
    shop: Session, someone: PgConnection, role: str
) -> None:
    shop.execute(f"""
        ALTER ROLE "{role}" REPLICATION;
        GRANT USAGE ON SCHEMA shop TO "{role}";
        GRANT SELECT (ctid, id) ON shop.customers TO "{role}";
        DROP PUBLICATION pub;
        CREATE PUBLICATION pub FOR TABLE shop.customers (id)
    """)
    assert errors(preflight(config(someone))) == []


@pytest.mark.since(15)
def test_a_copy_also_reads_the_columns_of_its_conditions(
    shop: Session, someone: PgConnection, role: str
) -> None:
    shop.execute(f"""
        CREATE TABLE shop.notes (id int PRIMARY KEY, "By" text, secret text);
        INSERT INTO shop.notes VALUES (1, 'me', 'x');
        ALTER ROLE "{role}" REPLICATION;
        GRANT USAGE ON SCHEMA shop TO "{role}";
        GRANT SELECT (id) ON shop.notes TO "{role}";
        DROP PUBLICATION pub;
        CREATE PUBLICATION pub FOR TABLE shop.notes (id) WHERE ("By" <> '')
            WITH (publish = 'insert')
    """)
    [finding] = errors(preflight(config(someone)))
    assert finding.remedy == f'GRANT SELECT ("ctid", "By") ON "shop"."notes" TO "{role}";'
    remedy_works(shop, config(someone), finding)
    [table] = published_tables(shop, "pub")
    with connect(someone, "test") as session:
        part = CtidRange(table.schema.name.quoted, 0, 5)
        batches = copy_range(session, table.schema, part, row_filter=table.row_filter)
        assert [copied.batch.to_pylist() for copied in batches] == [[{"id": 1}]]


def test_a_grant_on_the_root_is_none_on_its_partitions(
    shop: Session, someone: PgConnection, role: str
) -> None:
    shop.execute(f"""
        CREATE TABLE shop.orders (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE shop.orders_1 PARTITION OF shop.orders FOR VALUES IN (1);
        ALTER PUBLICATION pub SET (publish_via_partition_root);
        ALTER ROLE "{role}" REPLICATION;
        GRANT USAGE ON SCHEMA shop TO "{role}";
        GRANT SELECT ON shop.customers, shop.orders TO "{role}"
    """)
    [finding] = errors(preflight(config(someone)))
    assert '"shop"."orders_1"' in finding.remedy
    remedy_works(shop, config(someone), finding)


def test_tables_that_are_not_copied_need_not_be_read(
    shop: Session, someone: PgConnection, role: str
) -> None:
    shop.execute(f'ALTER ROLE "{role}" REPLICATION')
    only_stream = config(someone, table_sync_copy=TableSyncCopy(mode="none"))
    assert errors(preflight(only_stream)) == []


def test_rows_hidden_by_a_policy(shop: Session, someone: PgConnection, role: str) -> None:
    shop.execute(f"""
        ALTER ROLE "{role}" REPLICATION;
        GRANT USAGE ON SCHEMA shop TO "{role}"; GRANT SELECT ON shop.customers TO "{role}";
        ALTER TABLE shop.customers ENABLE ROW LEVEL SECURITY
    """)
    finding = about(preflight(config(someone)), "row security")
    assert finding.severity is Severity.ERROR
    remedy_works(shop, config(someone), finding)


# The slot


def test_a_slot_of_another_database(
    shop: Session, source: PgConnection, server: EmbeddedPostgres
) -> None:
    with connect(source.model_copy(update={"dbname": "postgres"}), "test") as elsewhere:
        elsewhere.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        finding = about(preflight(config(source)), f"slot {SLOT}")
        assert finding.kind is ErrorKind.SOURCE_SLOT
        assert "belongs to database postgres" in finding.problem
        remedy_works(elsewhere, config(source), finding)


def test_a_physical_slot_of_the_same_name(shop: Session, source: PgConnection) -> None:
    shop.execute("SELECT pg_create_physical_replication_slot(%s)", [SLOT])
    finding = about(preflight(config(source)), f"slot {SLOT}")
    assert "physical" in finding.problem
    remedy_works(shop, config(source), finding)


def test_a_slot_in_use(shop: Session, source: PgConnection) -> None:
    shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    assert errors(preflight(config(source))) == [], "our own slot, at rest, is fine"
    with closing(connect(source, "receiver", replication=True)) as stream:
        begun = stream.pgconn.exec_(
            f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0"
            " (proto_version '1', publication_names 'pub')".encode()
        )
        assert begun.status == pq.ExecStatus.COPY_BOTH
        pid = stream.info.backend_pid
        finding = about(preflight(config(source)), f"slot {SLOT}")
        assert finding.problem == f"is in use by server process {pid} (penstock_receiver)"
        shop.execute(finding.remedy.encode())
        assert errors(preflight(config(source), slot_patience=30)) == []


def test_a_slot_that_a_killed_receiver_has_left_half_made(
    shop: Session, source: PgConnection
) -> None:
    """The receiver uses it when it is there, so the pipeline may start."""
    with (
        closing(connect(source, "writer")) as writer,
        closing(connect(source, "receiver", replication=True)) as stream,
    ):
        writer.execute("BEGIN; INSERT INTO shop.customers VALUES (1, 'a')")
        stream.pgconn.send_query(
            f"CREATE_REPLICATION_SLOT {SLOT} LOGICAL pgoutput NOEXPORT_SNAPSHOT".encode()
        )
        wait_for(lambda: waited_for(shop, SLOT))
        findings = preflight(config(source), slot_patience=600)
        assert errors(findings) == []
        finding = about(findings, f"slot {SLOT}")
        assert f"(of server process {writer.info.backend_pid})" in finding.problem
        shop.execute(finding.remedy.encode())
        wait_for(lambda: not stream.pgconn.consume_input() and not stream.pgconn.is_busy())
        assert subjects(preflight(config(source))).isdisjoint({f"slot {SLOT}"})


@pytest.mark.parametrize("behavior", ["error", "recreate"])
def test_a_slot_that_is_lost(tmp_path: Path, behavior: str) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "fsync": "off", "max_wal_size": "32MB"}
    settings |= {"min_wal_size": "32MB"}
    with EmbeddedPostgres(tmp_path, settings=settings) as server:
        source = PgConnection.model_validate({"uri": server.dsn()})
        with connect(source, "test") as session:
            session.execute("CREATE TABLE public.a (id int PRIMARY KEY)")
            session.execute("CREATE PUBLICATION pub FOR ALL TABLES")
            session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
            for _ in range(3):
                session.execute(
                    "SELECT pg_switch_wal(); CREATE TABLE public.x (); DROP TABLE public.x"
                )
            session.execute("CHECKPOINT")
            configuration = config(source, invalidated_slot_behavior=behavior)
            finding = about(preflight(configuration), f"slot {SLOT}")
            assert finding.problem.startswith("is lost")
            expected = Severity.ERROR if behavior == "error" else Severity.WARNING
            assert finding.severity is expected
            if behavior == "error":
                remedy_works(session, configuration, finding)


# The publication


def test_a_publication_that_is_not_there(shop: Session, source: PgConnection) -> None:
    missing = config(source, publication_name="shop pub")
    finding = about(preflight(missing), "publication shop pub")
    assert "there are: pub" in finding.problem
    remedy_works(shop, missing, finding)


def test_a_publication_without_tables(shop: Session, source: PgConnection) -> None:
    shop.execute("CREATE PUBLICATION empty")
    finding = about(preflight(config(source, publication_name="empty")), "publication empty")
    assert finding.severity is Severity.ERROR
    shop.execute(finding.remedy.replace('"schema"."table"', "shop.customers").encode())
    assert errors(preflight(config(source, publication_name="empty"))) == []


def test_operations_that_are_not_sent(shop: Session, source: PgConnection) -> None:
    shop.execute("ALTER PUBLICATION pub SET (publish = 'insert, update')")
    finding = about(preflight(config(source)), "publication pub")
    assert finding.severity is Severity.WARNING
    assert "delete, truncate" in finding.problem
    remedy_works(shop, config(source), finding)


# Replica identities


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ("(id int)", "REPLICA IDENTITY FULL;"),
        ("(id int PRIMARY KEY DEFERRABLE)", "REPLICA IDENTITY FULL;"),
        ("(id int NOT NULL, CONSTRAINT u UNIQUE (id))", 'REPLICA IDENTITY USING INDEX "u";'),
        ("(id int, CONSTRAINT u UNIQUE (id))", "REPLICA IDENTITY FULL;"),
    ],
)
def test_a_table_without_a_key(
    shop: Session, source: PgConnection, table: str, remedy: str
) -> None:
    shop.execute(f"CREATE TABLE shop.visits {table}")
    finding = about(preflight(config(source)), "table shop.visits")
    assert finding.kind is ErrorKind.SOURCE_SCHEMA
    assert f'ALTER TABLE "shop"."visits" {remedy}' in finding.remedy
    remedy_works(shop, config(source), finding)
    assert errors(preflight(config(source))) == []


def test_a_table_that_was_told_to_send_nothing(shop: Session, source: PgConnection) -> None:
    shop.execute("ALTER TABLE shop.customers REPLICA IDENTITY NOTHING")
    finding = about(preflight(config(source)), "table shop.customers")
    assert finding.remedy == 'ALTER TABLE "shop"."customers" REPLICA IDENTITY DEFAULT;'
    remedy_works(shop, config(source), finding)


def test_a_table_that_only_grows_needs_no_key(shop: Session, source: PgConnection) -> None:
    shop.execute("CREATE TABLE shop.visits (id int)")
    shop.execute("ALTER PUBLICATION pub SET (publish = 'insert')")
    assert errors(preflight(config(source))) == []


@pytest.mark.since(15)
def test_a_column_list_without_the_key(shop: Session, source: PgConnection) -> None:
    shop.execute("DROP PUBLICATION pub")
    shop.execute("CREATE PUBLICATION pub FOR TABLE shop.customers (name)")
    finding = about(preflight(config(source)), "table shop.customers")
    assert finding.problem.endswith("needs: id")
    remedy_works(shop, config(source), finding)
    assert errors(preflight(config(source))) == []


PARTITIONED = """
    CREATE TABLE shop.orders (id int, note text NOT NULL{key}) PARTITION BY LIST (id);
    CREATE TABLE shop.orders_1 PARTITION OF shop.orders FOR VALUES IN (1);
    ALTER PUBLICATION pub SET (publish_via_partition_root)
"""


def test_partitions_that_log_less_than_their_root_promises(
    shop: Session, source: PgConnection
) -> None:
    """Postgres labels by the root's identity and logs by the partition's."""
    shop.execute(PARTITIONED.format(key=", PRIMARY KEY (id)"))
    shop.execute("ALTER TABLE shop.orders REPLICA IDENTITY FULL")
    assert errors(preflight(config(source))) == [], "the key is enough"
    shop.execute("ALTER TABLE shop.orders DROP CONSTRAINT orders_pkey")
    shop.execute("ALTER TABLE shop.orders_1 ADD PRIMARY KEY (id)")
    finding = about(preflight(config(source)), "partition shop.orders_1")
    assert finding.severity is Severity.ERROR
    remedy_works(shop, config(source), finding)
    assert errors(preflight(config(source))) == []


def test_a_partition_that_logs_another_key(shop: Session, source: PgConnection) -> None:
    shop.execute(PARTITIONED.format(key=", PRIMARY KEY (id)"))
    shop.execute("CREATE UNIQUE INDEX by_note ON shop.orders_1 (note)")
    shop.execute("ALTER TABLE shop.orders_1 REPLICA IDENTITY USING INDEX by_note")
    finding = about(preflight(config(source)), "partition shop.orders_1")
    assert finding.remedy.endswith("REPLICA IDENTITY DEFAULT;")
    remedy_works(shop, config(source), finding)
    assert errors(preflight(config(source))) == []


def test_a_key_that_is_renamed_while_its_partitions_are_looked_at(
    shop: Session, source: PgConnection
) -> None:
    """Partitions wait for a lock, and would come with names that their root did not have yet."""
    shop.execute(PARTITIONED.format(key=", PRIMARY KEY (id)"))
    (oid,) = shop.execute("SELECT 'shop.orders'::regclass::oid").fetchone() or (0,)
    table = table_schema(shop, oid)
    assert table is not None
    with connect(source, "other") as other, connect(source, "looks") as looks:
        other.execute("BEGIN; ALTER TABLE shop.orders RENAME id TO number")
        with ThreadPoolExecutor(1) as thread:
            looked = thread.submit(require_old_rows, looks, "pub", table)
            wait_for(lambda: _waits_for_lock(shop, looks))
            other.execute("COMMIT")
            looked.result()
    require_old_rows(shop, "pub", table)


def _waits_for_lock(session: Session, looks: Session) -> bool:
    query = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
    return session.execute(query, [looks.info.backend_pid]).fetchone() is not None


def test_a_partitioned_table_without_a_key(shop: Session, source: PgConnection) -> None:
    shop.execute(PARTITIONED.format(key=""))
    finding = about(preflight(config(source)), "table shop.orders")
    remedy_works(shop, config(source), finding)
    assert errors(preflight(config(source))) == []


# Worth knowing


def test_generated_columns_are_worth_a_word(shop: Session, source: PgConnection) -> None:
    shop.execute(
        "ALTER TABLE shop.customers ADD size int GENERATED ALWAYS AS (length(name)) STORED"
    )
    finding = about(preflight(config(source)), "table shop.customers")
    assert finding.severity is Severity.WARNING
    assert finding.problem.endswith("size")
    if server_version(shop) >= 180000:
        remedy_works(shop, config(source), finding)
    else:
        assert finding.remedy.startswith("--")


@pytest.mark.since(15)
def test_a_column_list_leaves_generated_columns_out_on_purpose(
    shop: Session, source: PgConnection
) -> None:
    shop.execute("""
        ALTER TABLE shop.customers ADD size int GENERATED ALWAYS AS (length(name)) STORED;
        DROP PUBLICATION pub; CREATE PUBLICATION pub FOR TABLE shop.customers (id)
    """)
    assert "table shop.customers" not in subjects(preflight(config(source)))


def test_partitions_that_are_not_logged(shop: Session, source: PgConnection) -> None:
    shop.execute(PARTITIONED.format(key=", PRIMARY KEY (id)"))
    shop.execute("CREATE UNLOGGED TABLE shop.orders_2 PARTITION OF shop.orders FOR VALUES IN (2)")
    finding = about(preflight(config(source)), "table shop.orders")
    assert finding.severity is Severity.WARNING
    assert "shop.orders_2" in finding.problem


def test_columns_that_show_the_names_of_others(shop: Session, source: PgConnection) -> None:
    shop.execute("ALTER TABLE shop.customers ADD kind regclass, ADD roles regrole[], ADD reg text")
    finding = about(preflight(config(source)), "table shop.customers")
    assert finding.severity is Severity.WARNING
    assert finding.problem.startswith("kind, roles: ")
    assert "penstock resync" in finding.remedy


def test_names_in_the_configuration_that_nothing_has(shop: Session, source: PgConnection) -> None:
    configuration = config(
        source,
        column_types={"shop.customers": {"nmae": "string"}, "shop.custmers": {"id": "string"}},
        table_sync_copy={"mode": "except", "tables": ["shop.custmers"]},
    )
    findings = preflight(configuration)
    problems = " ".join(f.problem for f in findings if f.subject == "column_types")
    assert "shop.customers.nmae" in problems
    assert "shop.custmers.id" in problems
    assert "shop.custmers" in about(findings, "table_sync_copy").problem


def test_an_override_that_cannot_be(shop: Session, source: PgConnection) -> None:
    configuration = config(source, column_types={"shop.customers": {"name": "double"}})
    finding = about(preflight(configuration), "table shop.customers")
    assert finding.kind is ErrorKind.CONFIG
    assert "name" in finding.problem


def test_a_table_locked_by_somebody_does_not_hang_the_preflight(
    shop: Session, source: PgConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.postgres.preflight.LOCK_TIMEOUT", "10ms")
    with connect(source, "test") as other:
        other.execute("BEGIN; LOCK TABLE shop.customers")
        findings = preflight(config(source))
    assert any("lock" in finding.problem for finding in errors(findings))
