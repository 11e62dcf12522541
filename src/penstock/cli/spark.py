"""A Spark session for one command, gone without a trace when the command ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penstock.cli.signals import end_children

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(
    name: str, *, master: str | None = None, config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session while the block runs.

    Starting one replaces the handler of SIGINT; put yours back afterwards.
    """
    from penstock.spark.session import build_session, stop_session

    # Spark makes a directory for tables of its catalog, which we have none of, where we are.
    with TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True) as warehouse:
        settings = {"spark.sql.warehouse.dir": warehouse, **(config or {})}
        session = build_session(name, master=master, config=settings)
        try:
            yield session
        finally:
            try:
                stop_session(session)
            finally:
                _leave_jvm()


def _leave_jvm() -> None:
    """End the JVM now: left alone it takes its time to notice that we are gone.

    Python objects that stand for objects in it would complain when they are
    collected, so the gateway between the two is closed first.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
    end_children()
