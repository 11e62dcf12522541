"""Build a Spark session that suits Penstock, or make an existing one fit.

Two things here are not obvious. Delta's jars arrive through
`spark.jars.packages`, and to find out each time that they are all there costs
five seconds of a processor; so a local session whose jars have been fetched gets
them on the class path instead, where a class archive covers them too (see
`class_archive`). And Spark ships packages to every Python task as if they were
Python's, whose directories each task then reads again; `prepare_session` takes
them off that list (DESIGN, "Python tasks start slowly").

Everything set here is a default: a value in `config` wins.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ErrorKind, PenstockError
from penstock.spark.class_archive import archive_file, using
from penstock.spark.jvm import check_java, find_java, launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DELTA_PACKAGE",
    "build_session",
    "check_java",
    "class_archive",
    "default_settings",
    "fetched_jars",
    "prepare_session",
    "start_workers",
]

DELTA_PACKAGE = "io.delta:delta-spark_4.1_2.13:4.4.0"
_DELTA_JARS = (
    "delta-spark_4.1_2.13",
    "delta-storage",
    "delta-kernel-api",
    "delta-kernel-defaults",
    "delta-kernel-unitycatalog",
)

# What Delta asks for and Spark brings itself, in the versions it wants: 12 MB
# to fetch remain of 87.
_BROUGHT_BY_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "io.unitycatalog:*",
    "javax.annotation:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.scala-lang:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)


def build_session(
    app_name: str = "penstock",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    adopt: bool = False,
) -> SparkSession:
    """A Spark session with Delta, ready for Penstock's jobs.

    `master` is `local[*]` unless said otherwise. `config` is handed to Spark and
    wins over every default. A context that runs in this process already is
    taken over only with `adopt`; without it, that is an error, since its
    settings could no longer be changed.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        if not adopt:
            raise PenstockError(
                ErrorKind.CONFIG,
                "a Spark session is already running in this process",
                hint="hand it to Penstock (spark=...), or stop it first",
            )
        return prepare_session(SparkSession.builder.getOrCreate())
    given = dict(config or {})
    master = given.pop("spark.master", None) or master or "local[*]"
    settings = _quickened(default_settings(master) | given, master, given)
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name)
    conf.setAll(list(settings.items()))
    check_java()
    with _python_of_this_process(master):
        if SparkContext._gateway is None:
            launch(conf)
        builder = SparkSession.builder.master(master).appName(app_name)
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    return prepare_session(session)


def prepare_session(session: SparkSession) -> SparkSession:
    """Make Python tasks of a session start quickly; harmless to repeat."""
    context = session.sparkContext
    includes = context._python_includes
    if includes:
        context._python_includes = [name for name in includes if not name.endswith(".jar")]
    return session


def start_workers(session: SparkSession) -> None:
    """Let Python workers start now, a second or two before the first copy needs them."""
    from pyspark.sql.functions import udf

    def nothing(_: int) -> str:
        return ""

    tasks = session.sparkContext.defaultParallelism
    session.range(0, tasks, 1, tasks).select(udf(nothing, "string", useArrow=False)("id")).collect()


def default_settings(master: str) -> dict[str, str]:
    """What a session of ours is set to, for a master."""
    local = master.startswith("local")
    settings = {
        "spark.jars.packages": DELTA_PACKAGE,
        "spark.jars.excludes": ",".join(_BROUGHT_BY_SPARK),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.memory": "2g",
        # Several tables are worked on at once, from threads; none may wait for
        # another's long job.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "penstock.spark.worker_daemon",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
    }
    if local:
        settings |= {
            "spark.sql.shuffle.partitions": str(_cores(master)),
            # The machine's own name may resolve to an address that a VPN or a
            # firewall makes unreachable.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return settings


def fetched_jars(ivy: str | None = None) -> list[Path]:
    """Delta's jars where an earlier start has put them; none if not all are there."""
    directory = Path(ivy or "~/.ivy2.5.2").expanduser() / "jars"
    version = DELTA_PACKAGE.rpartition(":")[2]
    jars = [directory / f"io.delta_{name}-{version}.jar" for name in _DELTA_JARS]
    # Another process may be fetching them: a jar that is not complete is no zip.
    return jars if all(zipfile.is_zipfile(jar) for jar in jars) else []


def class_archive(jars: list[Path]) -> Path | None:
    """Where the class archive for sessions with these jars is, or would be."""
    java = find_java()
    return archive_file(java, jars) if java else None


def _quickened(settings: dict[str, str], master: str, given: Mapping[str, str]) -> dict[str, str]:
    """The same settings, for a quicker start where all is in place."""
    jars = fetched_jars(given.get("spark.jars.ivy"))
    if not jars or not master.startswith("local") or "spark.jars.packages" in given:
        return settings
    quick = {name: value for name, value in settings.items() if name != "spark.jars.packages"}
    path = [*map(str, jars), given.get("spark.driver.extraClassPath")]
    quick["spark.driver.extraClassPath"] = os.pathsep.join(filter(None, path))
    archive = class_archive(jars)
    options = given.get("spark.driver.extraJavaOptions", "")
    # Java refuses to use one archive and to write another.
    if archive is not None and archive.exists() and "-XX:ArchiveClassesAtExit" not in options:
        quick["spark.driver.extraJavaOptions"] = f"{using(archive)} {options}".strip()
    return quick


def _cores(master: str) -> int:
    found = re.fullmatch(r"local\[(\d+)(?:,\s*\d+)?\]", master)
    if found:
        return int(found[1])
    return 1 if master == "local" else os.cpu_count() or 1


@contextmanager
def _python_of_this_process(master: str) -> Iterator[None]:
    """Let local tasks run this interpreter, also where its environment is not activated."""
    if not master.startswith("local") or "PYSPARK_PYTHON" in os.environ:
        yield
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"]
