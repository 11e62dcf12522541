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

from penstock.cli.exits import ExitCode
from penstock.cli.options import Progress
from penstock.cli.signals import StopRequest
from penstock.cli.spark import spark_session
from penstock.cli.surroundings import require_receiver_surroundings, require_surroundings
from penstock.cli.view import LiveView, View, view_for
from penstock.config import FileConfig, load_config
from penstock.errors import PenstockError
from penstock.postgres.preflight import Finding, preflight, report, require
from penstock.registry import DESTINATIONS, STORES

if TYPE_CHECKING:
    from penstock.destinations.base import Destination
    from penstock.pipeline import Pipeline
    from penstock.stores.base import PipelineStore

logger = logging.getLogger("penstock.run")

_SLOT_PATIENCE_S = 5.0
"""How long a receiver that was killed may still seem to hold the slot."""
_REFRESH_S = 0.5


def run_receiver(path: Path) -> ExitCode:
    """Fill the journal until stopped."""
    config = load_config(path)
    require_receiver_surroundings(config)
    report(_require_source(config))
    from penstock.journal.receiver import Receiver

    stop = StopRequest("stopping, what was received is made durable")
    stop.install()
    Receiver(config).run(stop.asked)
    logger.info("stopped")
    return ExitCode.OK


def run_pipeline(path: Path, progress: Progress) -> ExitCode:
    """Replicate until stopped."""
    config = load_config(path)
    require_surroundings(config)
    _require_source(config)
    from penstock.pipeline import Pipeline

    stop = StopRequest("stopping, running writes finish")
    stop.install()
    session = spark_session(
        f"penstock-{config.id}", master=config.spark.master, config=config.spark.config
    )
    with session as spark, view_for(progress) as view:
        stop.install()  # Spark has put its own handler in place of ours
        if isinstance(view, LiveView):
            stop.say = view.say  # what is written past it breaks the table and is overdrawn
        pipeline = Pipeline(
            config, store=build_store(config), destination=build_destination(config), spark=spark
        )
        _run(pipeline, view, stop)
    logger.info("stopped")
    return ExitCode.OK


def _require_source(config: FileConfig) -> list[Finding]:
    from penstock.journal.journal import Journal

    findings = preflight(config, slot_patience=_SLOT_PATIENCE_S)
    return require(findings, begun=Journal(config.journal_path).owner() is not None)


def build_store(config: FileConfig) -> PipelineStore:
    """The store that a file asks for."""
    store: PipelineStore = STORES.build(config.store.type, config.store.settings)
    return store


def build_destination(config: FileConfig) -> Destination:
    """The destination that a file asks for."""
    destination: Destination = DESTINATIONS.build(
        config.destination.type, config.destination.settings
    )
    return destination


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
