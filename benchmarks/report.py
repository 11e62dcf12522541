"""RESULTS.md: the measures with machine, versions and date."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.measure import Measure

_PACKAGES = ("penstock", "pyspark", "delta-spark", "psycopg", "pyarrow", "numba", "numpy")


def write_results(found: Sequence[Measure], path: Path) -> None:
    lines = [
        "# Benchmark results",
        "",
        "Made by `make bench`. Ratios are reference time over ours in the same run, best of three,",
        "both over the unix socket, warm Spark session, `local[2]`; rows of 8 columns.",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- commit: {commit()}",
        f"- machine: {machine()}",
        f"- versions: {versions()}",
        "",
        "| measure | value | floor | aim | verdict | runs |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(measure) for measure in found),
        "",
    ]
    path.write_text("\n".join(lines))


def _row(measure: Measure) -> str:
    verdict = "aim met" if measure.aim_met else "floor met" if measure.met else "**short**"
    runs = "; ".join(f"{what} {value}" for what, value in measure.details.items())
    value = f"{measure.value:.2f} {measure.unit}".strip()
    return (
        f"| {measure.name} | {value} | {measure.floor:g} | {measure.aim:g} | {verdict} | {runs} |"
    )


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()}"


def versions() -> str:
    packages = [f"{name} {version(name)}" for name in _PACKAGES]
    return ", ".join([f"Python {platform.python_version()}", *packages])


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent
    ).stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
