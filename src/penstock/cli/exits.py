"""How a command ends: its exit code, and the one error it prints.

Scripts go by the code, people by the text. Whatever a command raises ends here:
a `PenstockError` is printed as what happened and what to do, anything else as
the defect it is. Stack traces are for `--debug`.
"""

from __future__ import annotations

import traceback
from enum import IntEnum

from rich.console import Console
from rich.text import Text

from penstock.errors import DEFECT, PenstockError, named_cause


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
