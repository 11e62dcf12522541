"""`penstock retry` and `penstock resync`: ask something of tables, running or not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import typer

from penstock.cli.main import ExitCode
from penstock.config import FileConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.source import rightful_owner
from penstock.pipeline import PipelineStatus, TableStatus
from penstock.pipeline.assembly import Assembly
from penstock.pipeline.requests import Action, Request, Requests
from penstock.postgres.connection import connect


def ask(path: Path, action: Action, names: Sequence[str], *, every: bool) -> ExitCode:
    """Ask for an action on the tables named, or on every table that it can be done to."""
    if bool(names) == every:
        raise PenstockError(
            ErrorKind.CONFIG,
            f"name the tables to {action}, or give --all"
            if not names
            else "tables and --all do not go together",
            hint=f"penstock {action} {path} public.orders",
        )
    assembly = Assembly.of_file(path)
    config, status = assembly.config, assembly.status()
    tables = list(status.tables) if every else [_find(status, name) for name in names]
    _require_own_journal(config, status)
    requests = Requests(config.journal_path)
    when = "the running pipeline takes it up" if status.running else "at the next start"
    for table in tables:
        if action is Action.RETRY and table.error is None:
            if not every:
                typer.echo(f"{table.name} is {table.state.name}: nothing to retry")
            continue
        requests.add(Request(table.id, action))
        what = "is copied again" if action is Action.RESYNC else "is tried again"
        typer.echo(f"{table.name} {what}: {when}")
    return ExitCode.OK


def _require_own_journal(config: FileConfig, status: PipelineStatus) -> None:
    """Raise where the pipeline would never look for a request, or another one would find it."""
    owner = Journal(config.journal_path).owner()
    if owner is None:
        problem = f"there is no journal in {config.journal_path}"
    elif not _is_own(owner, config, status):
        problem = (
            f"the journal in {config.journal_path} belongs to another pipeline: to slot"
            f" {owner.slot} of database {owner.database} in cluster {owner.system_identifier}"
        )
    else:
        return
    raise PenstockError(
        ErrorKind.CONFIG,
        problem,
        hint="a relative journal.location, as ./penstock-journal is, starts at the directory that"
        " penstock is run in, so go to where the pipeline runs",
    )


def _is_own(owner: JournalOwner, config: FileConfig, status: PipelineStatus) -> bool:
    if status.source.position is None:  # Postgres cannot be asked who it is
        return owner.slot == config.slot_name
    with connect(config.pg_connection, f"{config.id}_tables") as session:
        return owner == rightful_owner(config, session)


def _find(status: PipelineStatus, name: str) -> TableStatus:
    """The table of that name, whose schema may be left out where that is clear."""
    found = [table for table in status.tables if name in (table.name, _bare(table.name))]
    exact = [table for table in found if table.name == name]
    if len(exact or found) == 1:
        return (exact or found)[0]
    known = [table.name for table in status.tables]
    if found:
        raise PenstockError(
            ErrorKind.CONFIG,
            f"{name} is in several schemas",
            hint=f"name one of {', '.join(table.name for table in found)}",
        )
    close = difflib.get_close_matches(name, known + [_bare(each) for each in known], n=1)
    raise PenstockError(
        ErrorKind.CONFIG,
        f"pipeline {status.id} has no table {name}",
        hint=f"did you mean {close[0]}?" if close else f"it has {', '.join(known) or 'none yet'}",
    )


def _bare(name: str) -> str:
    return name.partition(".")[2]
