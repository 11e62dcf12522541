"""Turn a configuration file into a store, a destination, a Spark session and a pipeline.

This is the only module that does so: the command line and `Pipeline.from_config` both use it.
Everything is built at its first use. `penstock status` needs the store alone, and must not wait for
the destination or for Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import FileConfig, load_config
from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline.status import PipelineStatus
from penstock.registry import DESTINATIONS, STORES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.destinations.base import Destination
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.surroundings import Requirement
    from penstock.stores.base import PipelineStore


class Assembly:
    """The parts of the pipeline that a configuration describes."""

    def __init__(self, config: FileConfig) -> None:
        self.config = config

    @classmethod
    def of_file(cls, path: str | Path) -> Assembly:
        """Read the file at `path`."""
        return cls(load_config(path))

    @cached_property
    def store(self) -> PipelineStore:
        store: PipelineStore = STORES.build(self.config.store.type, self.config.store.settings)
        return store

    @cached_property
    def destination(self) -> Destination:
        given = self.config.destination
        destination: Destination = DESTINATIONS.build(given.type, given.settings)
        return destination

    def session(self) -> AbstractContextManager[SparkSession]:
        """Return a session for the pipeline of one command; see `temporary_session`."""
        from penstock.spark.temporary_session import temporary_session

        spark = self.config.spark
        return temporary_session(
            f"penstock-{self.config.id}",
            master=spark.master,
            config={**self.destination.spark_settings(), **spark.config},
        )

    def pipeline(self, spark: SparkSession | None = None) -> Pipeline:
        """Return the pipeline; without `spark` it starts a session itself."""
        from penstock.pipeline.pipeline import Pipeline

        return Pipeline(self.config, store=self.store, destination=self.destination, spark=spark)

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the pipeline needs on this machine."""
        from penstock.pipeline.surroundings import requirements

        return requirements(self.config, self.store, self.destination)

    def status(self) -> PipelineStatus:
        """Return the status of the pipeline from what is durable, whether it runs or not.

        A store may have a method `for_reading`, which returns a store that creates nothing.
        """
        from penstock.pipeline.inspection import read_status
        from penstock.stores.memory import MemoryStore

        if type(self.store) is MemoryStore:
            raise PenstockError(
                ErrorKind.CONFIG,
                f"the store of pipeline {self.config.id} is in the memory of its process, where no"
                " other process can read it",
                hint="set store.type to sql",
            )
        for_reading = getattr(self.store, "for_reading", None)
        return read_status(self.config, for_reading() if for_reading else self.store)
