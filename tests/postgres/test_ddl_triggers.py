from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.postgres.connection import Session
from penstock.postgres.ddl_triggers import (
    TriggerState,
    functions_sql,
    install,
    trigger_state,
    triggers_sql,
    uninstall,
)
from tests.conftest import Database


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with closing(database.connect()) as session:
        yield session


def made(session: Session) -> int:
    row = session.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'penstock'").fetchone()
    assert row is not None
    return int(str(row[0]))


def fail_to_announce(session: Session) -> list[str]:
    """Install triggers that only warn; their warnings, as they come."""
    broken = functions_sql().replace("pg_logical_emit_message", "no_such_function")
    session.execute((broken + triggers_sql()).encode())
    warnings: list[str] = []
    session.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))
    return warnings


def test_installing_and_taking_out(session: Session) -> None:
    assert trigger_state(session) is TriggerState.MISSING
    install(session)
    install(session)
    assert trigger_state(session) is TriggerState.CURRENT
    uninstall(session)
    uninstall(session)
    assert trigger_state(session) is TriggerState.MISSING
    assert made(session) == 0


@pytest.mark.parametrize(
    "older",
    [
        pytest.param(
            "COMMENT ON EVENT TRIGGER penstock_announce_columns IS 'penstock 0'", id="by its mark"
        ),
        pytest.param(
            "ALTER EVENT TRIGGER penstock_announce_rewrite ENABLE", id="passes over replicas"
        ),
    ],
)
def test_an_older_version_is_replaced(session: Session, older: str) -> None:
    install(session)
    session.execute(older.encode())
    assert trigger_state(session) is TriggerState.OTHER_VERSION
    install(session)
    assert trigger_state(session) is TriggerState.CURRENT


def test_what_a_session_does_as_a_replica_is_announced(session: Session) -> None:
    warnings = fail_to_announce(session)
    session.execute("CREATE TABLE t (id int)")
    session.execute("SET session_replication_role = replica")
    session.execute("ALTER TABLE t ALTER id TYPE int USING id * 2")
    assert len(warnings) == 2


def test_a_trigger_that_is_switched_off_is_missing(
    session: Session,
) -> None:
    install(session)
    session.execute("ALTER EVENT TRIGGER penstock_announce_rewrite DISABLE")
    assert trigger_state(session) is TriggerState.MISSING


def test_what_others_keep_in_the_schema_stays(
    session: Session,
) -> None:
    install(session)
    session.execute("CREATE TABLE penstock.theirs (id int)")
    uninstall(session)
    assert made(session) == 1


def test_a_failing_announcement_lets_the_statement_pass(
    session: Session,
) -> None:
    warnings = fail_to_announce(session)
    session.execute("CREATE TABLE t (id int)")
    session.execute("ALTER TABLE t ALTER id TYPE bigint")
    assert len(warnings) == 2
    assert all("penstock could not announce" in warning for warning in warnings)


def test_anybody_may_alter_a_table_then(session: Session, database: Database) -> None:
    install(session)
    role = f"{database.name}_plain"
    session.execute(f"CREATE ROLE {role}".encode())
    try:
        session.execute(f"GRANT ALL ON SCHEMA public TO {role}".encode())
        warnings: list[str] = []
        session.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))
        session.execute(f"SET ROLE {role}".encode())
        session.execute("CREATE TABLE t (id int)")
        session.execute("ALTER TABLE t ADD v int DEFAULT 1, ALTER id TYPE bigint")
        assert warnings == []
    finally:
        session.execute("RESET ROLE")
        session.execute(f"DROP OWNED BY {role}".encode())
        session.execute(f"DROP ROLE {role}".encode())
