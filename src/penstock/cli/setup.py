"""`penstock setup`: the event triggers that announce schema changes."""

from __future__ import annotations

from pathlib import Path

import typer

from penstock.cli.main import ExitCode
from penstock.config import load_config
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres import ddl_triggers
from penstock.postgres.connection import Session, connect
from penstock.postgres.ddl_triggers import TriggerState


def set_up(path: Path, *, uninstall: bool, show: bool) -> ExitCode:
    """Put the triggers in or take them out, or show the SQL that does."""
    if show:
        typer.echo(ddl_triggers.uninstall_sql() if uninstall else _whole_sql(), nl=False)
        return ExitCode.OK
    config = load_config(path)
    with connect(config.pg_connection, "setup") as session:
        return _uninstall(session) if uninstall else _install(session)


def _install(session: Session) -> ExitCode:
    database = session.info.dbname
    before = ddl_triggers.trigger_state(session)
    if before is TriggerState.CURRENT:
        typer.echo(f"nothing to do: {database} has the event triggers of this release")
        return ExitCode.OK
    if ddl_triggers.may_make_triggers(session):
        ddl_triggers.install(session)
        done = "set up" if before is TriggerState.MISSING else "upgraded"
        typer.echo(f"event triggers {done} in {database}: schema changes are announced from now on")
        return ExitCode.OK
    if not ddl_triggers.may_make_functions(session):
        raise _needs_superuser(session, "may not make functions, nor event triggers,", "")
    ddl_triggers.install(session, triggers=False)
    typer.echo(f"functions made in {database}")
    raise _needs_superuser(session, "may not make event triggers", ddl_triggers.triggers_sql())


def _uninstall(session: Session) -> ExitCode:
    database = session.info.dbname
    missing = ddl_triggers.trigger_state(session) is TriggerState.MISSING
    if not missing and not ddl_triggers.may_make_triggers(session):
        sql = ddl_triggers.uninstall_sql()
        raise _needs_superuser(session, "may not drop event triggers", sql)
    ddl_triggers.uninstall(session)
    typer.echo(
        f"event triggers taken out of {database}; a pipeline that runs as a superuser sets them"
        " up again when it starts"
    )
    return ExitCode.OK


def _needs_superuser(session: Session, what: str, statements: str) -> PenstockError:
    hint = "run `penstock setup` with a superuser in pg_connection, or have one run "
    hint += f"this:\n{statements}" if statements else "what `penstock setup --print` shows"
    return PenstockError(
        ErrorKind.SOURCE_PRIVILEGE,
        f"role {session.info.user} {what} in {session.info.dbname}",
        hint=hint.rstrip(),
    )


def _whole_sql() -> str:
    return ddl_triggers.functions_sql() + "\n" + ddl_triggers.triggers_sql()
