"""`penstock status`: a pipeline looked at from outside."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.main import ExitCode
from penstock.cli.view import STATE_STYLES
from penstock.pipeline import PipelineStatus
from penstock.pipeline.assembly import Assembly


def show_status(path: Path, *, as_json: bool) -> ExitCode:
    """Print where the pipeline stands."""
    status = Assembly.of_file(path).status()
    if as_json:
        typer.echo(json.dumps(status.to_json(), indent=2))
    else:
        _print(status)
    return ExitCode.OK


def _print(status: PipelineStatus) -> None:
    console = Console(highlight=False)
    source, journal = status.source, status.journal
    running = {True: "running", False: "not running", None: "unknown"}[status.running]
    facts = Table.grid(padding=(0, 2))
    facts.add_row("pipeline", f"{status.id}, receiver {running}")
    if source.problem:
        facts.add_row("source", Text(source.problem, style="red"))
    else:
        facts.add_row(
            "source",
            f"at {source.position}, acknowledged up to {source.confirmed},"
            f" WAL {source.slot_wal_status}",
        )
    covered = f"{journal.start} to {journal.end}" if journal.end else "nothing yet"
    facts.add_row("journal", Text(f"{covered}, {size(journal.bytes)} in {journal.location}"))
    console.print(facts, soft_wrap=True)
    console.print()
    if not status.tables:
        console.print("no tables yet: the pipeline has not been started")
        return
    tables = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("table", "state", "equals the source at"):
        tables.add_column(name)
    for name in ("behind", "waiting", "lag"):
        tables.add_column(name, justify="right")
    for table in status.tables:
        tables.add_row(
            Text(table.name),
            Text(table.state.name, style=STATE_STYLES.get(table.state.name, "")),
            str(table.position) if table.position else "–",
            size(table.lag_bytes) if table.lag_bytes is not None else "–",
            size(table.pending_bytes),
            f"{table.lag_seconds:.1f} s" if table.position else "–",
        )
    console.print(tables)
    for table in status.tables:
        if table.error:
            console.print(Text.assemble("\n", (f"{table.name}: {table.error.reason}", "red")))
            console.print(Text.assemble(("hint: ", "bold cyan"), table.error.solution))


def size(count: int) -> str:
    """Bytes as people read them."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
