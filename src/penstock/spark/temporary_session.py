"""A Spark session for one command, of which nothing is left when the command has ended.

A JVM keeps its work in the temporary directory: jars, shuffle files, native libraries. The session
gets a temporary directory of its own for all of that, which is removed with it. So nothing is left
even where the JVM was killed and could not tidy up.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXIT_S = 10.0
"""How long a JVM may take to run its shutdown hooks before it is killed."""

_directories: set[str] = set()


@contextmanager
def temporary_session(
    name: str, *, master: str | None = None, config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Run the block with a session, then end its JVM.

    Starting one replaces the handler of SIGINT; put yours back afterwards.
    """
    from pyspark import SparkContext

    from penstock.spark.session import build_session, stop_session

    before = SparkContext._gateway
    with TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True) as directory:
        _directories.add(directory)
        try:
            session = build_session(name, master=master, config=_within(directory, config or {}))
            try:
                yield session
            finally:
                stop_session(session)
        finally:
            if SparkContext._gateway is not before:
                _end_jvm()
            _directories.discard(directory)


def remove_directories() -> None:
    """Remove the temporary directories of sessions whose JVM was killed; for a process that ends
    at once, without leaving the block of its session."""
    for directory in list(_directories):
        shutil.rmtree(directory, ignore_errors=True)


def _within(directory: str, config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that let Spark write to `directory` what it would write elsewhere.

    The warehouse is a directory for tables in Spark's own catalog. We have none, and Spark would
    make the directory where the command is run.
    """
    options = f"-Djava.io.tmpdir={directory} {config.get(_JAVA_OPTIONS, '')}".strip()
    ours = {"spark.sql.warehouse.dir": directory, "spark.local.dir": directory}
    return {**ours, **config, _JAVA_OPTIONS: options}


def _end_jvm() -> None:
    """End the JVM now. It ends when its standard input does, after its shutdown hooks.

    Python objects that stand for objects in the JVM would log errors when they are
    collected, so the gateway between the two is closed first.
    """
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        return
    jvm = gateway.proc
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(jvm.pid).children(recursive=True)
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        jvm.stdin.close()
    with suppress(Exception):
        jvm.wait(_EXIT_S)
    if jvm.poll() is None:
        jvm.kill()
        jvm.wait()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, _EXIT_S)
