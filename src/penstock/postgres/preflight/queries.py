"""Small questions to the server that the checks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import DEFECT, ErrorKind, PenstockError
from penstock.postgres.connection import Session, translated


def setting(session: Session, name: str) -> str:
    """A setting in its own unit; empty where the server's version has none of that name."""
    query = "SELECT max(setting) FROM pg_settings WHERE name = %s"
    return str(row(session, query, [name])[0] or "")


def count(session: Session, view: str) -> int:
    return int(row(session, f"SELECT count(*) FROM {view}")[0])


def row(session: Session, query: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The one row of a query that always has one."""
    with translated("looking at the server"):
        found = session.execute(query.encode(), parameters).fetchone()
    if found is None:
        raise PenstockError(
            ErrorKind.INTERNAL, "a query of the preflight found nothing", hint=DEFECT
        )
    return found
