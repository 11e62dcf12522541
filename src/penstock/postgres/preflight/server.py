"""Whether the server and the role allow a pipeline at all."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config import PgConnection, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.findings import Finding, error, from_error, warning
from penstock.postgres.connection import Session, connect, in_recovery, server_version
from penstock.postgres.ddl_triggers import TriggerState, may_make_triggers, trigger_state
from penstock.postgres.preflight.queries import count, row, setting
from penstock.postgres.slots import FAILOVER_SINCE, SlotInfo
from penstock.schema import quote_identifier

OLDEST, NEWEST = 14, 18
_MIB_PER_GIB = 1024


def version_findings(session: Session) -> Iterator[Finding]:
    """A server too old to ask further, or newer than we know."""
    major = server_version(session) // 10000
    if major < OLDEST:
        yield error(
            "server",
            f"is Postgres {major}; Penstock needs {OLDEST} or later",
            f"-- upgrade the server to Postgres {OLDEST} or later",
        )
    elif major > NEWEST:
        yield warning(
            "server",
            f"is Postgres {major}, newer than what Penstock was tried with ({NEWEST})",
            "-- look for a newer release of Penstock",
        )


def server_findings(session: Session, slot: SlotInfo | None) -> Iterator[Finding]:
    """What the server as a whole must have set, and have left."""
    if in_recovery(session):
        yield error(
            "server",
            "is a standby; copying from one is not supported yet",
            "-- set pg_connection to the primary server",
            ErrorKind.SOURCE_SNAPSHOT,
        )
    level = setting(session, "wal_level")
    if level != "logical":
        yield error(
            "wal_level",
            f"is {level}, so the WAL does not hold what replication needs",
            "ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server",
        )
    slots = int(setting(session, "max_replication_slots"))
    used = count(session, "pg_replication_slots")
    if slot is None and used >= slots:
        yield error(
            "max_replication_slots",
            f"all {slots} replication slots are taken",
            f"ALTER SYSTEM SET max_replication_slots = {max(used, slots) + 5};"
            " -- then restart the server; or drop a slot that nobody uses",
            ErrorKind.SOURCE_SLOT,
        )
    senders = int(setting(session, "max_wal_senders"))
    sending = count(session, "pg_stat_replication")
    if sending >= senders and not (slot and slot.active):
        yield error(
            "max_wal_senders",
            f"all {senders} WAL senders are busy",
            f"ALTER SYSTEM SET max_wal_senders = {max(sending, senders) + 5};"
            " -- then restart the server",
        )
    if setting(session, "server_encoding") == "SQL_ASCII":
        yield warning(
            "server_encoding",
            "is SQL_ASCII, so nothing makes sure that text is UTF-8: a table stops where it is not",
            "-- move the data to a database with ENCODING 'UTF8'",
        )


def retention_findings(session: Session) -> Iterator[Finding]:
    """How long the server keeps what a stopped pipeline has not read."""
    keep = int(setting(session, "max_slot_wal_keep_size"))
    if keep < 0:
        yield warning(
            "max_slot_wal_keep_size",
            "is unlimited: while no receiver runs, the slot keeps WAL until the disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();"
            " -- choose what the disk can spare",
        )
    elif keep < _MIB_PER_GIB:
        yield warning(
            "max_slot_wal_keep_size",
            f"is {keep} MB: after that much WAL without a receiver the slot is lost and"
            " every table is copied again",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();"
            " -- choose what the disk can spare",
        )
    idle = setting(session, "idle_replication_slot_timeout")  # since version 18
    if idle not in ("", "0"):
        yield warning(
            "idle_replication_slot_timeout",
            f"is {idle} s: the slot is lost when no receiver runs for that long, and every"
            " table is copied again",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        )


def announcement_findings(session: Session) -> Iterator[Finding]:
    """Whether changes of tables are announced, or will be when a pipeline starts."""
    state = trigger_state(session)
    if state is TriggerState.CURRENT or may_make_triggers(session):
        return
    yield warning(
        "event triggers",
        f"are {state.value}: a renamed column is taken for one dropped and one added, and a"
        " changed table is copied again where it could be followed",
        "-- run `penstock setup CONFIG` as a superuser, or have one run what"
        " `penstock setup CONFIG --print` prints",
    )


def failover_findings(session: Session, config: PipelineConfig) -> Iterator[Finding]:
    """Whether standbys can keep the slot, and cannot fall behind the journal."""
    if not config.failover:
        return
    if server_version(session) < FAILOVER_SINCE:
        yield error(
            "failover",
            f"needs Postgres 17 or later; the server is {server_version(session) // 10000}",
            "-- leave failover out of the configuration",
        )
    elif not setting(session, "synchronized_standby_slots"):
        yield warning(
            "synchronized_standby_slots",
            "is empty: a standby that is promoted may lack changes that were received"
            " already, and then every table is copied again",
            "ALTER SYSTEM SET synchronized_standby_slots = '...'; SELECT pg_reload_conf();"
            " -- the physical slots of the standbys that may be promoted",
        )


def role_findings(session: Session) -> Iterator[Finding]:
    """Whether the role may replicate."""
    asked = row(
        session,
        """
        SELECT rolname, rolreplication OR rolsuper, to_regrole('rds_replication') IS NOT NULL,
               coalesce(pg_has_role(to_regrole('rds_replication'), 'MEMBER'), false)
        FROM pg_roles WHERE rolname = current_user
        """,
    )
    role, may_replicate, is_rds, rds_member = asked
    if may_replicate or rds_member:
        return
    name = quote_identifier(role)
    yield error(
        f"role {role}",
        "has no right to replicate",
        f"GRANT rds_replication TO {name};" if is_rds else f"ALTER ROLE {name} REPLICATION;",
        ErrorKind.SOURCE_PRIVILEGE,
    )


def replication_findings(connection: PgConnection) -> Iterator[Finding]:
    """A pooler or a proxy may let in sessions and yet no replication."""
    try:
        connect(connection, "doctor", replication=True).close()
    except PenstockError as failure:
        yield from_error("replication connection", failure)
