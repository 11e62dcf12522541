"""Spark's classes, loaded and checked ahead, so that its JVM starts in half the time.

Most of what a fresh JVM does for Spark is to find, read and verify twenty
thousand classes. Java can keep the result in a file (class data sharing, "CDS")
and map it at the next start. `python -m penstock.spark.class_archive` makes that
file: it starts Spark, does a bit of everything that Penstock does with Delta,
and has the JVM write its classes down as it ends, which takes half a minute.
Sessions use the file when it is there. Java ignores one that does not fit (other
jars, another Java), so it can never do harm.

The file has about 200 MB and lives in the user's cache directory; removing it is
safe.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.jvm import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_file(java: Path, jars: list[Path]) -> Path:
    """Where the archive for this Java, this Spark and these jars is, or would be."""
    import pyspark

    release = java.resolve().parent.parent / "release"
    made_of = [str(java.resolve()), pyspark.__file__, pyspark.__version__, *map(str, jars)]
    if release.is_file():
        made_of.append(release.read_text(encoding="utf-8", errors="replace"))
    digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "penstock" / f"spark-{pyspark.__version__}-{digest}.jsa"


def using(archive: Path) -> str:
    """The JVM's options for using an archive; quietly not, where it does not fit."""
    return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'


def make_archive() -> Path:
    """Write the archive for the local sessions that `build_session` makes here."""
    from penstock.spark.session import build_session, class_archive, fetched_jars

    if not fetched_jars():
        fetch = "from penstock.spark.session import build_session; build_session().stop()"
        subprocess.run([sys.executable, "-c", fetch], check=True)
    target = class_archive(fetched_jars())
    if target is None:
        check_java()
        raise AssertionError("there is a Java, and yet there is none")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        draft = Path(directory) / target.name
        session = build_session(
            "penstock-class-archive",
            master="local[2]",
            config={
                "spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={draft}" {_QUIET}'
            },
        )
        _exercise(session, Path(directory))
        session.stop()
        _end_jvm()
        draft.rename(target)
    return target


def _end_jvm() -> None:
    """Let this process's JVM end, which is when it writes, and wait until it has."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _exercise(session: SparkSession, directory: Path) -> None:
    """Have the JVM load what a pipeline into Delta uses."""
    from penstock.spark.session import start_workers

    start_workers(session)
    table = f"delta.`{directory / 'table'}`"
    rows = "SELECT id, CAST(id AS decimal(12,2)) d, CAST(id AS string) s, now() t FROM range(1000)"
    session.sql(rows).write.parquet(str(directory / "table"))
    session.sql(f"CONVERT TO DELTA parquet.`{directory / 'table'}`")
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    for _ in range(2):
        session.sql(f"INSERT INTO {table} {rows}")
        session.sql(
            f"MERGE INTO {table} t USING ({rows} WHERE id < 10) s ON t.id = s.id"
            " WHEN MATCHED AND s.id = 3 THEN DELETE WHEN MATCHED THEN UPDATE SET *"
            " WHEN NOT MATCHED THEN INSERT *"
        )
    session.sql(f"DELETE FROM {table} WHERE id = 5")
    session.sql(f"OPTIMIZE {table}")
    session.sql(f"DESCRIBE HISTORY {table}").collect()
    session.read.format("delta").load(str(directory / "table")).groupBy("id").count().collect()


if __name__ == "__main__":
    sys.stdout.write(f"{make_archive()}\n")
