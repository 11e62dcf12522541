"""Why a server lets nobody in, from what libpq says.

A connection that fails has no SQLSTATE that libpq would tell, so its text decides; a text we do
not know counts as a server that cannot be reached, which is tried again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import ErrorKind, PenstockError, shorten
from penstock.schema import quote_identifier


@dataclass(frozen=True, slots=True)
class _Refusal:
    """How libpq says that there is no session, and what that means."""

    pattern: str
    kind: ErrorKind
    message: str
    hint: str


_REFUSALS = (
    _Refusal(
        r'database ".*" does not exist',
        ErrorKind.SOURCE_CONFIGURATION,
        'there is no database "{database}" at {server}',
        "set pg_connection.dbname to the database that has the publication",
    ),
    _Refusal(
        r"start wal ?sender",
        ErrorKind.SOURCE_PRIVILEGE,
        'role "{user}" may not replicate from {server}',
        "ALTER ROLE {quoted_user} REPLICATION;",
    ),
    _Refusal(
        r"permission denied for database",
        ErrorKind.SOURCE_PRIVILEGE,
        'role "{user}" may not connect to database "{database}" at {server}',
        "GRANT CONNECT ON DATABASE {quoted_database} TO {quoted_user};",
    ),
    _Refusal(
        r"pg_hba\.conf",
        ErrorKind.SOURCE_AUTHENTICATION,
        'no rule of {server} lets role "{user}" in from here: {reason}',
        "add a line for this role, database and address to the server's pg_hba.conf"
        " (replication needs none of its own) and reload it",
    ),
    _Refusal(
        r'role ".*" (does not exist|is not permitted to log in)'
        r"|authentication failed|no password supplied",
        ErrorKind.SOURCE_AUTHENTICATION,
        '{server} does not accept role "{user}": {reason}',
        "check user and password of pg_connection (or PGPASSWORD, or the password file),"
        " and that the role exists and may log in",
    ),
    _Refusal(
        r"too many (clients|connections)|remaining connection slots|max_wal_senders",
        ErrorKind.SOURCE_CONNECTION,
        "{server} has no connection left: {reason}",
        "wait, close other connections, or raise max_connections and max_wal_senders"
        " (or the role's CONNECTION LIMIT)",
    ),
    _Refusal(
        r"starting up|shutting down|not (yet )?accepting connections|recovery mode",
        ErrorKind.SOURCE_CONNECTION,
        "{server} takes no connections at the moment: {reason}",
        "wait until the server is up",
    ),
    _Refusal(
        r"unexpected eof|SSL SYSCALL|connection reset",
        ErrorKind.SOURCE_CONNECTION,
        "the connection to {server} was cut while it was made: {reason}",
        "wait; if it does not pass, see whether a proxy or load balancer in between has a server,"
        " and what the server's log says",
    ),
    _Refusal(
        r"does not support SSL|certificate|sslmode|SSL error",
        ErrorKind.SOURCE_CONFIGURATION,
        "no TLS connection to {server} with these settings: {reason}",
        "check sslmode, sslrootcert, sslcert and sslkey of pg_connection",
    ),
    _Refusal(
        r"^(connection is bad: )?invalid |unrecognized|definition of service|unsupported startup",
        ErrorKind.CONFIG,
        "cannot connect to {server} with these settings: {reason}",
        "mend that setting in pg_connection; a connection pooler in between does not do",
    ),
)
_UNREACHABLE = _Refusal(
    "",
    ErrorKind.SOURCE_CONNECTION,
    "cannot connect to Postgres at {server}: {reason}",
    "check host and port of pg_connection, that the server runs, that it listens there"
    " (listen_addresses) and that no firewall is between",
)
# A server may speak another language; libpq at least tells that it asked for a password.
_UNKNOWN_PASSWORD = _Refusal(
    "",
    ErrorKind.SOURCE_AUTHENTICATION,
    '{server} wants a password for role "{user}": {reason}',
    "set the password in pg_connection, PGPASSWORD or the password file",
)


def refused(error: psycopg.Error, conninfo: str) -> PenstockError:
    """Why there is no session, from libpq's text: there is no SQLSTATE to go by."""
    given = conninfo_to_dict(conninfo)
    tried = {name: str(given.get(name) or "") for name in ("host", "port", "user", "dbname")}
    if error.pgconn is not None:  # with libpq's defaults filled in
        for name, attribute in zip(tried, ("host", "port", "user", "db"), strict=True):
            known: bytes = getattr(error.pgconn, attribute)
            tried[name] = known.decode(errors="replace") or tried[name]
    user = tried["user"] or "?"
    database = tried["dbname"] or user
    timed_out = isinstance(error, psycopg.errors.ConnectionTimeout)
    text = str(error)
    words = {
        "server": f"{tried['host'] or 'localhost'} port {tried['port'] or 5432}",
        "user": user,
        "quoted_user": quote_identifier(user),
        "database": database,
        "quoted_database": quote_identifier(database),
        "reason": "no answer in time" if timed_out else shorten(reason(text)),
    }
    otherwise = _UNREACHABLE
    if error.pgconn is not None and error.pgconn.needs_password:
        otherwise = _UNKNOWN_PASSWORD
    refusal = next((r for r in _REFUSALS if re.search(r.pattern, text, re.I)), otherwise)
    return PenstockError(
        refusal.kind, refusal.message.format(**words), hint=refusal.hint.format(**words)
    )


def reason(text: str) -> str:
    """libpq's last word, without the preamble that repeats host and port."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "failed: " in line] or lines
    last = telling[-1].rpartition("failed: ")[2] if telling else "unknown reason"
    for prefix in ("FATAL:", "ERROR:", "error:"):
        last = last.removeprefix(prefix).strip()
    return last
