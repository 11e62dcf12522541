"""The process that Spark forks Python workers from, made quick.

Spark starts one such daemon on every executor (`spark.python.daemon.module`) and
forks a worker from it for every Python task. What is imported and compiled here,
before the fork, no task waits for. And every task makes Python forget what it knows of
its import path, after which the directory of each archive on the path is read
again: so archives that nothing is imported from leave it.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import Any


def drop_archives() -> None:
    """Take off the import path what only slows it down.

    Jars never hold Python. Spark's own zips are left out where pyspark is also
    installed as a package, and kept where they are the only place it is in.
    """
    lean = [entry for entry in sys.path if not entry.endswith(".jar")]
    leaner = [entry for entry in lean if not entry.endswith(".zip") or not _is_sparks(entry)]
    found = all(PathFinder.find_spec(name, leaner) for name in ("pyspark", "py4j"))
    sys.path[:] = leaner if found else lean
    for entry in list(sys.path_importer_cache):
        if entry not in sys.path and entry.endswith((".jar", ".zip")):
            del sys.path_importer_cache[entry]


def _is_sparks(entry: str) -> bool:
    name = entry.rpartition("/")[2]
    return name.startswith(("pyspark", "py4j"))


def load_ahead() -> None:
    """Load what tasks need, kernels too, so that workers are forked with it."""
    import pyarrow.parquet

    from penstock.postgres import copy
    from penstock.spark import extract

    copy.warm_up()
    del pyarrow, extract


if __name__ == "__main__":
    drop_archives()
    load_ahead()
    from pyspark import daemon

    run: Any = daemon.manager
    run()
