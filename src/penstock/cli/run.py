"""`penstock run` and `penstock receive`: look at everything first, then run until stopped.

What can be refused is refused before the slot exists, because a slot that nobody
reads makes Postgres keep its WAL.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.main import ExitCode, Progress
from penstock.cli.signals import StopRequest
from penstock.cli.view import LiveView, View, view_for
from penstock.config import FileConfig, load_config
from penstock.errors import PenstockError
from penstock.pipeline.assembly import Assembly
from penstock.pipeline.surroundings import journal_requirement
from penstock.postgres.preflight import Finding, preflight, report, require
from penstock.spark.temporary_session import remove_directories

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline

logger = logging.getLogger("penstock.run")

_SLOT_PATIENCE_S = 5.0
"""How long a receiver that was killed may still seem to hold the slot."""
_REFRESH_S = 0.5


def run_receiver(path: Path) -> ExitCode:
    """Fill the journal until stopped."""
    config = load_config(path)
    journal_requirement(config).require()
    report(_require_source(config))
    from penstock.journal.receiver import Receiver

    stop = StopRequest("stopping, what was received is made durable")
    stop.install()
    Receiver(config).run(stop.asked)
    logger.info("stopped")
    return ExitCode.OK


def run_pipeline(path: Path, progress: Progress) -> ExitCode:
    """Replicate until stopped."""
    assembly = Assembly.of_file(path)
    for requirement in assembly.requirements():
        requirement.require()
    _require_source(assembly.config)

    stop = StopRequest("stopping, running writes finish", tidy=remove_directories)
    stop.install()
    with assembly.session() as spark, view_for(progress) as view:
        stop.install()  # Spark has put its own handler in place of ours
        if isinstance(view, LiveView):
            stop.say = view.say  # what is written past it breaks the table and is overdrawn
        _run(assembly.pipeline(spark), view, stop)
    logger.info("stopped")
    return ExitCode.OK


def _require_source(config: FileConfig) -> list[Finding]:
    from penstock.journal.journal import Journal

    findings = preflight(config, slot_patience=_SLOT_PATIENCE_S)
    return require(findings, begun=Journal(config.journal_path).owner() is not None)


def _run(pipeline: Pipeline, view: View, stop: StopRequest) -> None:
    """Run until it is stopped or fails. Whatever ends it, the pipeline is shut down first."""

    def shut_down() -> None:
        stop.asked.wait()
        pipeline.shutdown()

    # In a thread of its own: the start may wait long for a slot, and must be
    # stoppable then too.
    with ThreadPoolExecutor(1, "shutdown") as threads:
        end = threads.submit(shut_down)
        try:
            _show_while_running(pipeline, view, stop)
        except BaseException:
            stop.asked.set()
            if (second := end.exception()) is not None:
                logger.error("shutdown failed", exc_info=second)
            raise
        stop.asked.set()
        end.result()


def _show_while_running(pipeline: Pipeline, view: View, stop: StopRequest) -> None:
    try:
        pipeline.start()
    except PenstockError:
        if stop.asked.is_set():
            return
        raise
    while not stop.asked.is_set():
        status = pipeline.status()
        try:
            view.show(status.to_json())
        except OSError:
            stop.asked.set()  # nobody reads our output any more
        if status.error is not None:
            break
        stop.asked.wait(_REFRESH_S)
    pipeline.wait()
    with suppress(OSError):
        view.show(pipeline.status().to_json())
