"""The `penstock` command.

Commands live in modules of their own, imported when they are called: help and
version must not wait for Spark, Arrow or Numba. What a command raises becomes
one printed error and an exit code. Scripts go by the code, people by the text; stack traces
are for `--debug`.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.logs import LogFormat, LogLevel, set_up_logging
from penstock.errors import DEFECT, PenstockError, named_cause

_EXIT_CODES = """\
**Exit codes**: 0 done, or stopped as asked · 1 failed while running ·
2 wrong usage or configuration · 3 trouble with Postgres · 4 trouble with
destination, journal or store · 130 interrupted
"""
_GLOBAL_FLAGS = {"--debug"}
_GLOBAL_OPTIONS = {"--log-format", "--log-level"}


class ExitCode(IntEnum):
    """What each exit code means. They are part of the contract with scripts."""

    OK = 0  # done, or stopped as asked (one SIGINT or SIGTERM)
    FAILED = 1  # failed while running; doctor: something is missing; demo: not equal
    USAGE = 2  # wrong usage, wrong configuration, or no Java
    SOURCE = 3  # Postgres: connection, privileges, publication, slot
    DESTINATION = 4  # the destination, the journal or the store
    HUNG_UP = 129
    INTERRUPTED = 130  # a second SIGINT; demo: the first
    TERMINATED = 143  # likewise SIGTERM


class Progress(StrEnum):
    """How `run` shows what it does."""

    AUTO = "auto"
    LIVE = "live"
    PLAIN = "plain"
    JSON = "json"
    NONE = "none"


class _Commands(TyperGroup):
    """Takes the global options at any place, and ends every failure in one clear error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _global_options_first(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(130) from interrupt
        except Exception as error:
            if _is_usage_error(error):
                raise
            report(error, debug=ctx.params.get("debug", False))
            raise typer.Exit(exit_code_of(error)) from None


app = typer.Typer(
    name="penstock",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog=_EXIT_CODES,
)

Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        show_default=False,
        help="The pipeline's YAML file; **penstock init** writes one.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        from penstock import __version__

        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show stack traces, and log everything.")
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="Logs on stderr as lines, or as JSON objects.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="The least to log.", show_default="info")
    ] = None,
) -> None:
    """Replicates Postgres tables, continuously and correctly, through Spark into Delta.

    It copies what is there, then streams every change. New here? **penstock demo**
    shows it all on a Postgres of its own; **penstock init** writes a configuration
    for yours, **penstock doctor** says what that Postgres still lacks, and
    **penstock run** replicates.
    """
    level = log_level or (LogLevel.DEBUG if debug else LogLevel.INFO)
    set_up_logging(log_format, level, debug=debug)


@app.command(
    epilog="**Examples**\n\npenstock demo\n\npenstock demo --seconds 60 --kill   # and still equal"
)
def demo(
    seconds: Annotated[float, typer.Option(min=0, help="How long the shop keeps changing.")] = 30,
    kill: Annotated[
        bool,
        typer.Option("--kill", help="Kill the receiver, then the whole driver, in between."),
    ] = False,
    lake: Annotated[
        Path, typer.Option(help="Where the Delta tables go; emptied if a demo made it.")
    ] = Path("demo-lake"),
) -> None:
    """Replicate a small shop into Delta tables, live, and compare every row at the end.

    Starts a Postgres of its own in a temporary directory, fills a shop with 200,000 rows,
    copies them, and keeps changing the shop while the changes stream. Then every table is
    compared with Postgres, row by row. Exits 0 only if all are equal, and leaves nothing
    running.
    """
    from penstock.demo.demo import run_demo

    raise typer.Exit(run_demo(seconds=seconds, kill=kill, lake=lake))


@app.command(
    epilog="**Examples**\n\n"
    "penstock run penstock.yaml\n\n"
    "penstock run penstock.yaml --log-format json 2>>penstock.log\n\n"
    "penstock run penstock.yaml --progress json | jq .tables   # a status twice a second"
)
def run(
    config: Config,
    progress: Annotated[
        Progress,
        typer.Option(
            help="A live table, plain lines or nothing on stderr, or JSON lines on stdout; "
            "auto is live on a terminal and plain elsewhere."
        ),
    ] = Progress.AUTO,
) -> None:
    """Replicate: copy every table of the publication, then stream its changes.

    Runs until it is stopped. SIGINT (Ctrl-C) or SIGTERM lets running writes finish; a second
    one stops at once. Either way nothing is lost: the next start goes on from there.
    """
    from penstock.cli.run import run_pipeline

    raise typer.Exit(run_pipeline(config, progress))


@app.command(epilog="**Example**\n\npenstock receive penstock.yaml")
def receive(config: Config) -> None:
    """Run the receiver alone: drain the slot into the journal, without Spark or destination.

    **penstock run** starts a receiver by itself. Run one alone to keep the source
    drained while Spark is down or being upgraded.
    """
    from penstock.cli.run import run_receiver

    raise typer.Exit(run_receiver(config))


@app.command(
    epilog="**Examples**\n\n"
    "penstock status penstock.yaml\n\n"
    "penstock status penstock.yaml --json | jq '.tables[] | select(.state == \"errored\")'"
)
def status(
    config: Config,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show each table's state and position, and how far it is behind.

    Looks into store, journal and Postgres from outside; the pipeline may be running or not.
    """
    from penstock.cli.status import show_status

    raise typer.Exit(show_status(config, as_json=as_json))


Tables = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TABLE]...", show_default=False, help="Tables, as in `status`."),
]
All = Annotated[bool, typer.Option("--all", help="Every table, instead of naming them.")]


@app.command(
    epilog="**Examples**\n\n"
    "penstock retry penstock.yaml public.orders\n\n"
    "penstock retry penstock.yaml --all"
)
def retry(config: Config, tables: Tables = None, every: All = False) -> None:
    """Let tables that are errored go on where the error stopped them.

    Mend the cause first; **penstock status** names it. Works on a running pipeline,
    within seconds, and on a stopped one, at its next start.
    """
    from penstock.cli.tables import ask
    from penstock.pipeline.requests import Action

    raise typer.Exit(ask(config, Action.RETRY, tables or [], every=every))


@app.command(
    epilog="**Examples**\n\n"
    "penstock resync penstock.yaml public.orders public.order_lines\n\n"
    "penstock resync penstock.yaml --all"
)
def resync(config: Config, tables: Tables = None, every: All = False) -> None:
    """Copy tables again, whatever state they are in.

    Readers keep the old rows until the new copy replaces them in one commit. Works on a
    running pipeline, within seconds, and on a stopped one, at its next start.
    """
    from penstock.cli.tables import ask
    from penstock.pipeline.requests import Action

    raise typer.Exit(ask(config, Action.RESYNC, tables or [], every=every))


@app.command(epilog="**Example**\n\npenstock doctor penstock.yaml && penstock run penstock.yaml")
def doctor(
    config: Config,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say everything that is missing, at once, each with the statement that mends it.

    Looks at Postgres (wal_level, slots, privileges, publication, keys), at Java, at the
    directories and at the store. Changes nothing. Exits 1 if a pipeline could not run.
    """
    from penstock.cli.doctor import examine

    raise typer.Exit(examine(config, as_json=as_json))


@app.command(
    epilog="**Examples**\n\n"
    "penstock setup penstock.yaml\n\n"
    "penstock setup penstock.yaml --print | psql -U postgres shop"
)
def setup(
    config: Config,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Take them out.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the SQL instead.")] = False,
) -> None:
    """Install or upgrade the event triggers that announce schema changes.

    With them a renamed column is told from one dropped and another added, and Delta
    tables follow most changes in place. Event triggers are for superusers to make; a
    pipeline that runs as one makes them by itself.
    """
    from penstock.cli.setup import set_up

    raise typer.Exit(set_up(config, uninstall=uninstall, show=show))


@app.command(
    epilog="**Examples**\n\n"
    "penstock init                      # writes penstock.yaml\n\n"
    "penstock init shop.yaml\n\n"
    "penstock init --stdout | less"
)
def init(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="The file to write.")] = Path(
        "penstock.yaml"
    ),
    stdout: Annotated[bool, typer.Option("--stdout", help="Print it instead.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a configuration with every setting, its default and what it is for."""
    from penstock.cli.template import write_template

    write_template(path, stdout=stdout, force=force)


def main() -> None:
    """The entry point of the `penstock` command."""
    app(prog_name="penstock")


def _is_usage_error(error: Exception) -> bool:
    """Whether the command-line parser raised it; it then prints it itself."""
    return hasattr(error, "exit_code") and hasattr(error, "format_message")


def _global_options_first(args: Sequence[str]) -> list[str]:
    """`run x.yaml --debug` is as good as `--debug run x.yaml`."""
    first: list[str] = []
    rest: list[str] = []
    remaining = iter(args)
    for arg in remaining:
        name, _, value = arg.partition("=")
        if arg == "--":
            return [*first, *rest, arg, *remaining]
        if name in _GLOBAL_FLAGS or (name in _GLOBAL_OPTIONS and value):
            first.append(arg)
        elif name in _GLOBAL_OPTIONS:
            first += [arg, *[value for value in [next(remaining, None)] if value is not None]]
        else:
            rest.append(arg)
    return [*first, *rest]


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for what a command raised."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if not isinstance(error, PenstockError):
        return ExitCode.FAILED
    match error.kind.partition(".")[0]:
        case "config":
            return ExitCode.USAGE
        case "source":
            return ExitCode.SOURCE
        case "destination" | "journal" | "store":
            return ExitCode.DESTINATION
        case _:
            return ExitCode.FAILED


def report(error: Exception, *, debug: bool) -> None:
    """Print an error on stderr, once, with its remedy; its stack trace only with `debug`."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if debug:
        console.print(Text("".join(traceback.format_exception(error)).rstrip(), style="dim"))
    if isinstance(error, PenstockError):
        message, hint = _message(error), error.hint
    else:
        message, hint = named_cause(error), DEFECT
    console.print(Text.assemble(("error: ", "bold red"), message))
    if hint:
        console.print(Text.assemble(("hint: ", "bold cyan"), hint))


def _message(error: PenstockError) -> str:
    return str(error).removesuffix(f"\nhint: {error.hint}")
