"""Putting the event triggers of `ddl` into a database, and taking them out."""

from __future__ import annotations

import hashlib
from enum import Enum
from functools import cache
from importlib.resources import files

from penstock.postgres.connection import Session, translated

_TRIGGERS = ("penstock_announce_columns", "penstock_announce_rewrite")


class TriggerState(Enum):
    MISSING = "missing"
    OTHER_VERSION = "of another version"
    CURRENT = "current"


def functions_sql() -> str:
    """What the database's owner may run."""
    return _read("functions")


def triggers_sql() -> str:
    """What a superuser has to run, after the functions are there."""
    return _read("triggers").replace("{version}", _version())


def uninstall_sql() -> str:
    return _read("uninstall")


@cache
def _version() -> str:
    """Of what the SQL files make: another one with every change to them."""
    made = _read("functions") + _read("triggers")
    return hashlib.sha256(made.encode()).hexdigest()[:12]


def trigger_state(session: Session) -> TriggerState:
    """Whether the triggers are there, switched on, and those of this release.

    Ours are enabled always; earlier releases' were not.
    """
    query = """
        SELECT max(obj_description(oid, 'pg_event_trigger')), bool_and(evtenabled = 'A')
        FROM pg_event_trigger WHERE evtname = ANY(%s) AND evtenabled IN ('O', 'A')
        HAVING count(*) = %s
    """
    with translated("looking for the event triggers"):
        row = session.execute(query, [list(_TRIGGERS), len(_TRIGGERS)]).fetchone()
    if row is None:
        return TriggerState.MISSING
    current = tuple(row) == (f"penstock {_version()}", True)
    return TriggerState.CURRENT if current else TriggerState.OTHER_VERSION


def may_make_triggers(session: Session) -> bool:
    """Whether the role is a superuser, or what a provider has in its place."""
    query = """
        SELECT rolsuper OR coalesce(pg_has_role(to_regrole('rds_superuser'), 'MEMBER'), false)
        FROM pg_roles WHERE rolname = current_user
    """
    with translated("looking at the role"):
        row = session.execute(query).fetchone()
    return row is not None and bool(row[0])


def may_make_functions(session: Session) -> bool:
    """Whether the role may make the schema, or functions in it."""
    query = """
        SELECT CASE WHEN to_regnamespace('penstock') IS NULL
               THEN has_database_privilege(current_database(), 'CREATE')
               ELSE has_schema_privilege(to_regnamespace('penstock'), 'CREATE') END
    """
    with translated("looking at the role"):
        row = session.execute(query).fetchone()
    return row is not None and bool(row[0])


def install(session: Session, *, triggers: bool = True) -> None:
    """Make or replace the functions and, for who may, the triggers; all or nothing."""
    _run(session, functions_sql() + (triggers_sql() if triggers else ""), "setting up")


def uninstall(session: Session) -> None:
    _run(session, uninstall_sql(), "taking out")


def _run(session: Session, sql: str, doing: str) -> None:
    with translated(f"{doing} the event triggers"), session.transaction():
        # Two pipelines of one database may start at the same moment.
        session.execute("SELECT pg_advisory_xact_lock(hashtext('penstock.ddl'))")
        session.execute(sql.encode())


def _read(name: str) -> str:
    return (files("penstock.postgres") / "sql" / f"{name}.sql").read_text("utf-8")
