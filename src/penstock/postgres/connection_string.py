"""What a connection string says, unless it says something else than was meant.

In a URI the characters that part it (`@`, `/` and some more) must be encoded where they
belong to a password. One that is not ends the password early, and libpq takes the rest of it
for a host, a port or a database. These are named in errors, logs and status: so a URI
that looks like it is refused, and nothing of it is quoted.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import ErrorKind, PenstockError


def parsed(uri: str) -> dict[str, Any]:
    """The parameters in a URI, or in libpq's other form, keywords with values."""
    try:
        in_uri = conninfo_to_dict(uri)
    except psycopg.Error:
        # libpq's own message quotes the part it does not understand, which may
        # be the password.
        raise _refusal() from None
    if _splits_the_password(uri, in_uri):
        raise _refusal()
    return in_uri


def _splits_the_password(uri: str, in_uri: dict[str, Any]) -> bool:
    scheme, _, rest = uri.partition("://")
    if scheme not in ("postgresql", "postgres"):
        return False  # keywords and values, where nothing has to be encoded
    host, port = str(in_uri.get("host") or ""), str(in_uri.get("port") or "")
    # As it is written: an @ that belongs to the database's name can be encoded.
    database = rest.partition("/")[2].partition("?")[0]
    return "@" in host or "@" in database or re.fullmatch("[0-9,]*", port) is None


def _refusal() -> PenstockError:
    return PenstockError(
        ErrorKind.CONFIG,
        "pg_connection.uri is not a connection string that libpq understands",
        hint="write postgresql://user:password@host:port/dbname, with @ : / % ? # in the"
        " password, and @ in the name, percent-encoded, or give host, user and so on as"
        " separate settings",
    )
