"""`make bench`: run the measures, print a line for each, write RESULTS.md.

python -m benchmarks                     all of them
python -m benchmarks receive_inserts     some; RESULTS.md is left alone
python -m benchmarks amounts             large amounts and idleness, which take minutes more
python -m benchmarks idle_hour           20 tables, and nothing written for an hour
python -m benchmarks --times 1           quicker, less sure
python -m benchmarks --against REF       this tree and commit REF in turns, medians of five runs
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import (
    against,
    amounts,
    copying,
    delivering,
    fresh_clone,
    idleness,
    latency,
    receiving,
)
from benchmarks.measure import Measure
from benchmarks.report import write_results
from penstock.testing import EmbeddedPostgres


@cache
def session() -> SparkSession:
    """The warm session that all measures with Spark share."""
    from penstock.destinations.delta.session import PACKAGE, SPARK_SETTINGS
    from penstock.spark.session import build_session

    spark = build_session(
        "penstock-bench",
        master="local[2]",
        config=SPARK_SETTINGS | {"spark.jars.packages": f"{PACKAGE},{copying.JDBC_DRIVER}"},
    )
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(3):
            spark.range(100_000).write.format("delta").mode("append").save(directory + "/warm")
    return spark


AMOUNTS = "amounts"

Named = dict[str, Callable[[], Measure]]


def measures(server: EmbeddedPostgres, directory: Path, times: int) -> tuple[Named, Named, Named]:
    """Those that make RESULTS.md, those of large amounts, and those that run by name alone."""

    def with_spark(run: Callable[..., Measure]) -> Callable[[], Measure]:
        return lambda: run(server, directory, session(), times)

    usual = {
        "receive_inserts": partial(receiving.inserts, server, directory, times),
        "receive_mixed": partial(receiving.mixed, server, directory, times),
        "delta_inserts": with_spark(delivering.inserts),
        "delta_mixed": with_spark(delivering.mixed),
        "delta_busy_tables": with_spark(delivering.busy_tables),
        "copy_1m": with_spark(copying.million),
        "copy_5m": with_spark(copying.five_million),
        "latency_inserts": with_spark(latency.inserts),
        "latency_updates": with_spark(latency.updates),
        "receiver_memory": partial(receiving.memory, server, directory, times),
        "demo_fresh_clone": fresh_clone.demo,
    }
    large = {
        "idle_cpu": with_spark(idleness.idle),
        "many_tables": with_spark(idleness.many_tables),
        "subtransactions": partial(amounts.subtransactions, server, directory, times),
        "small_transactions": partial(amounts.small_transactions, server, directory, times),
        "huge_transaction": partial(amounts.huge_transaction, server, directory, times),
        "huge_row": with_spark(amounts.huge_row),
    }
    lone = {"idle_hour": with_spark(partial(idleness.idle, seconds=idleness.HOUR))}
    return usual, large, lone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="which measures; all without any")
    parser.add_argument("--times", type=int, default=3, help="runs per ratio, the best counts")
    parser.add_argument("--against", metavar="REF", help="a commit to compare with, in turns")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        directory = Path(name)
        with EmbeddedPostgres(
            directory / "postgres",
            listen_tcp=True,
            settings={"shared_buffers": "1GB", "autovacuum": "off", "max_wal_size": "16GB"},
        ) as server:
            usual, large, lone = measures(server, directory, arguments.times)
            known = usual | large | lone
            names = list(large) if arguments.names == [AMOUNTS] else arguments.names
            unknown = set(names) - set(known)
            if unknown:
                parser.error(f"unknown: {', '.join(unknown)}; known: {AMOUNTS}, {', '.join(known)}")
            if arguments.against:
                # The demo installs everything anew, and measures the network.
                compared = names or [name for name in usual if name != "demo_fresh_clone"]
                return 0 if against.compare(arguments.against, compared) else 1
            for wanted in names or usual:
                measure = known[wanted]()
                found.append(measure)
                print(measure, flush=True)
                for what, value in measure.details.items():
                    print(f"    {what}: {value}", flush=True)
    if not arguments.names:
        write_results(found, Path(__file__).with_name("RESULTS.md"))
    return 0 if all(measure.met for measure in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
