"""What holds for every command: help, version, usage, logs."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from penstock import __version__
from penstock.cli.logs import JsonFormatter, TextFormatter
from penstock.cli.main import ExitCode, exit_code_of
from penstock.cli.run import _REFRESH_S
from penstock.errors import ErrorKind, PenstockError
from tests.cli.command import COMMAND, Penstock

COMMANDS = ["demo", "run", "receive", "status", "retry", "resync", "doctor", "init"]


def test_the_version_is_printed(penstock: Penstock) -> None:
    outcome = penstock("--version")
    assert (outcome.code, outcome.stdout) == (0, f"penstock {__version__}\n")


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_wait_for_nothing_heavy(option: str) -> None:
    """Half a second is what they may cost; these modules alone cost more than that."""
    outcome = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], option],
        check=True,
        capture_output=True,
        text=True,
    )
    imported = {line.split("|")[-1].strip().split(".")[0] for line in outcome.stderr.splitlines()}
    assert "typer" in imported
    assert imported.isdisjoint({"numba", "numpy", "psycopg", "pyarrow", "pyspark", "sqlite3"})


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_with_an_example(penstock: Penstock, command: str) -> None:
    outcome = penstock(command, "--help")
    assert outcome.code == 0
    assert "Example" in outcome.stdout
    assert f"penstock {command}" in outcome.stdout


def test_the_help_of_run_tells_how_often_a_status_is_printed(penstock: Penstock) -> None:
    assert _REFRESH_S == 0.5
    assert "a status twice a second" in penstock("run", "--help").stdout


def test_help_names_every_command_and_the_exit_codes(penstock: Penstock) -> None:
    outcome = penstock("--help")
    assert all(command in outcome.stdout for command in COMMANDS)
    assert "Exit codes" in outcome.stdout


@pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["demo", "--seconds", "soon"]])
def test_wrong_usage_exits_with_2(penstock: Penstock, arguments: list[str]) -> None:
    outcome = penstock(*arguments)
    assert outcome.code == 2
    assert "Error" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_without_arguments_there_is_help(penstock: Penstock) -> None:
    outcome = penstock()
    assert outcome.code == 2
    assert "Usage" in outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    "arguments", [["--debug", "run", "none.yaml"], ["run", "none.yaml", "--debug"]]
)
def test_a_stack_trace_is_shown_with_debug_wherever_it_stands(
    penstock: Penstock, arguments: list[str]
) -> None:
    outcome = penstock(*arguments)
    assert outcome.code == 2
    assert "Traceback" in outcome.stderr
    assert len(outcome.errors) == 1


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ErrorKind.CONFIG, ExitCode.USAGE),
        (ErrorKind.SOURCE_SLOT, ExitCode.SOURCE),
        (ErrorKind.DESTINATION_REJECTED, ExitCode.DESTINATION),
        (ErrorKind.JOURNAL, ExitCode.DESTINATION),
        (ErrorKind.STORE, ExitCode.DESTINATION),
        (ErrorKind.DATA_DECODE, ExitCode.FAILED),
        (ErrorKind.INTERNAL, ExitCode.FAILED),
    ],
)
def test_the_kind_of_an_error_decides_the_exit_code(kind: ErrorKind, code: ExitCode) -> None:
    assert exit_code_of(PenstockError(kind, "x")) == code


def record(**extra: object) -> logging.LogRecord:
    values = {"name": "penstock.pipeline", "levelname": "INFO", "msg": "copied", "created": 0.0}
    return logging.makeLogRecord(values | extra)


def test_a_text_log_is_one_line_with_its_extras() -> None:
    line = TextFormatter(stack_traces=False).format(record(table="public.orders", rows=3))
    assert line == "1970-01-01T00:00:00.000Z info pipeline: copied table=public.orders rows=3"


def test_a_json_log_is_one_object_with_its_extras() -> None:
    entry = json.loads(JsonFormatter().format(record(table="public.orders", rows=3)))
    assert entry == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "info",
        "logger": "penstock.pipeline",
        "message": "copied",
        "table": "public.orders",
        "rows": 3,
    }


def test_a_logged_exception_is_one_line_unless_debugging() -> None:
    error = ValueError("first\nsecond")
    failed = record(exc_info=(ValueError, error, None))
    assert TextFormatter(stack_traces=False).format(failed).endswith("copied (first)")
    assert "ValueError: first" in TextFormatter(stack_traces=True).format(failed)
    assert json.loads(JsonFormatter().format(failed))["error"] == "first"
