"""How a status looks: live on a terminal, as lines, as log entries, as JSON."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.main import Progress
from penstock.cli.status import _print as print_status
from penstock.cli.view import JsonView, LiveView, LogView, PlainView, View, view_for
from penstock.demo.demo import Place
from penstock.demo.demo import _report as report_demo
from penstock.pipeline.receiver_process import ReceiverReport, ReceiverState
from penstock.pipeline.status import (
    JournalStatus,
    PipelineStatus,
    SourceStatus,
    TableStatus,
    Work,
)
from penstock.schema import Lsn, TableId, TableName
from penstock.states import MANUAL, DataSync, Errored, Ready, TableState
from penstock.testing.comparison import Comparison


def status(state: TableState, copied: int = 500, applied: int = 1234) -> dict[str, Any]:
    """A status as the pipeline makes it, so that the views keep up with its form."""
    return pipeline_status(state, copied, applied).to_json()


def pipeline_status(
    state: TableState,
    copied: int = 500,
    applied: int = 1234,
    name: str = "public.orders",
    reason: str | None = None,
) -> PipelineStatus:
    table = TableStatus(
        TableId(1),
        name,
        state,
        Lsn(16),
        Lsn(16),
        pending_bytes=10,
        lag_bytes=0,
        lag_seconds=1.25,
        estimated_rows=1000,
        work=Work(copied, 250.0, applied, 99.5, 3),
    )
    return PipelineStatus(
        "shop",
        True,
        ReceiverReport(ReceiverState.STREAMING, pid=7, reason=reason),
        SourceStatus(Lsn(32)),
        JournalStatus("/journal", Lsn(1), Lsn(32), 2**20),
        (table,),
    )


def console(**settings: Any) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, width=120, **settings), output


def test_a_live_view_shows_state_rows_changes_rate_and_lag() -> None:
    terminal, output = console(force_terminal=True, color_system=None)
    with LiveView(terminal) as view:
        view.note = "12 of 30 s"
        view.show(status(DataSync()))
        view.say("killed the receiver")
        view.show(status(Ready("copy")))
    text = output.getvalue()
    for shown in ("12 of 30 s", "public.orders", "data_sync", "500 (50 %)", "250/s", "killed the"):
        assert shown in text
    for shown in ("ready", "1,234", "100/s", "1.2 s", "receiver streaming", "1.0 MiB up to 0/20"):
        assert shown in text


def test_a_live_view_says_why_a_table_is_errored() -> None:
    terminal, output = console(force_terminal=True, color_system=None)
    with LiveView(terminal) as view:
        view.show(status(Errored("value too large", "mend it", MANUAL, Ready("copy"))))
    assert "errored" in output.getvalue()
    assert "value too large" in output.getvalue()


ODD = ["a[b]", "a[/b]", "a[bold]", "a:smile:", "a\\[b]"]


@pytest.mark.parametrize("odd", ODD)
def test_the_views_show_names_and_reasons_as_they_are(odd: str) -> None:
    failed = Errored(f"reason {odd}", "mend it", MANUAL, Ready("copy"))
    shown = pipeline_status(failed, name=f"public.{odd}", reason=f"cause {odd}").to_json()
    terminal, output = console(force_terminal=True, color_system=None)
    with LiveView(terminal) as live:
        live.note = f"note {odd}"
        live.show(shown)
        live.say(f"said {odd}")
    for text in ("note ", "public.", "reason ", "cause ", "said "):
        assert text + odd in output.getvalue()
    terminal, output = console()
    plain = PlainView(terminal)
    plain.note = f"note {odd}"
    plain.show(shown)
    assert f"public.{odd} is errored: reason {odd}\nnote {odd}, " in output.getvalue()


@pytest.mark.parametrize("odd", ODD)
def test_the_status_shows_names_and_reasons_as_they_are(
    odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Errored(f"reason {odd}", f"solution {odd}", MANUAL, Ready("copy"))
    status = pipeline_status(failed, name=f"public.{odd}")
    location = JournalStatus(f"/journal/{odd}", Lsn(1), Lsn(32), 2**20)
    print_status(replace(status, journal=location))
    printed = capsys.readouterr().out
    for shown in (f"public.{odd} ", f"reason {odd}\n", f"solution {odd}\n", f"/journal/{odd}"):
        assert shown in printed


@pytest.mark.parametrize("odd", ODD)
def test_the_demos_report_shows_keys_and_paths_as_they_are(odd: str, tmp_path: Path) -> None:
    terminal, output = console()
    table = TableName("public", odd)
    report_demo(
        terminal, Place(tmp_path / odd), [Comparison(table, 1, 0, 1, 0, 0, (f"missing {odd}",))]
    )
    for shown in (f"\n{table} ", f"{table}: missing {odd}\n", f"{odd}/.penstock/journal\n"):
        assert shown in output.getvalue()


def test_a_plain_view_tells_changes_of_state_once_and_the_totals_now_and_then() -> None:
    terminal, output = console()
    view = PlainView(terminal, interval=3600)
    view.show(status(DataSync()))
    view.show(status(DataSync()))
    view.show(status(Ready("copy")))
    lines = output.getvalue().splitlines()
    assert lines[0] == "public.orders is data_sync"
    assert lines[1].startswith("0 of 1 tables ready, 500 rows copied, 1,234 changes applied")
    assert lines[2:] == ["public.orders is ready"]


def test_a_log_view_tells_progress_only_while_there_is_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    view = LogView(interval=0)
    with caplog.at_level(logging.INFO, "penstock"):
        for applied in (1, 1, 2):
            view.show(status(Ready("copy"), applied=applied))
    assert [record.__dict__["changes_applied"] for record in caplog.records] == [1, 2]


def test_a_json_view_prints_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    shown = status(Ready("copy"))
    JsonView().show(shown)
    assert json.loads(capsys.readouterr().out) == shown


@pytest.mark.parametrize(
    ("progress", "kind"),
    [
        (Progress.AUTO, LogView),  # the tests' stderr is no terminal
        (Progress.LIVE, LiveView),
        (Progress.PLAIN, LogView),
        (Progress.JSON, JsonView),
        (Progress.NONE, View),
    ],
)
def test_the_option_chooses_the_view(progress: Progress, kind: type[View]) -> None:
    assert type(view_for(progress)) is kind
