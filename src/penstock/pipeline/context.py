"""What every worker of a running pipeline shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING

from penstock.config import PipelineConfig
from penstock.destinations.base import Destination
from penstock.journal.journal import Journal
from penstock.schema import Lsn
from penstock.stores.base import PipelineStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class SourcePosition:
    """How far the source's WAL was at the last look; None before the first."""

    last_seen: Lsn | None = None


@dataclass(frozen=True, slots=True)
class PipelineContext:
    """The parts of a pipeline, opened and ready.

    `stopping` is set once, when the pipeline shuts down; whoever waits for
    anything waits for it too. `retiring` is held while segments are dropped, and
    while a table becomes `data_sync`: from then on its segments stay, and a
    retirement that was decided before must not come after.
    """

    config: PipelineConfig
    store: PipelineStore
    journal: Journal
    destination: Destination
    spark: SparkSession
    stopping: Event = field(default_factory=Event)
    retiring: Lock = field(default_factory=Lock)
    source: SourcePosition = field(default_factory=SourcePosition)


class Interrupted(Exception):
    """The pipeline shuts down; what was under way is repeated after a restart."""
