"""Two checkouts against each other: the working tree and an earlier commit, on one machine.

The machine's speed changes from minute to minute, so the two take turns: each round runs every
measure once in one checkout and once in the other, and every second round in the other order. The
medians are compared. A measure counts as worse when its median is worse by more than a tenth.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROUNDS = 5
TOLERANCE = 0.10

_REPOSITORY = Path(__file__).parent.parent
_LINE = re.compile(r"^MEASURE (\S+) (-?[\d.]+) floor (\S+)", re.MULTILINE)
_SMALLER_IS_BETTER = re.compile(r"^(latency|idle|receiver_memory|many_tables|huge)")


def compare(reference: str, names: Sequence[str], rounds: int = ROUNDS) -> bool:
    """Print both medians of each measure; whether none is worse."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"before": [], "now": []})
    with _checkout(reference) as before:
        sides = [("before", before), ("now", _REPOSITORY)]
        for number in range(rounds):
            for side, checkout in sides if number % 2 == 0 else reversed(sides):
                for name, value in _run(checkout, names).items():
                    values[name][side].append(value)
    verdicts = [_report(name, found["before"], found["now"]) for name, found in values.items()]
    return all(verdicts)


def is_worse(name: str, before: float, now: float) -> bool:
    if _SMALLER_IS_BETTER.match(name):
        # Latencies are differences, and may be near zero: a tenth of a second is the least.
        return now - before > TOLERANCE * max(abs(before), 1.0)
    return now < before * (1 - TOLERANCE)


def _report(name: str, before: list[float], now: list[float]) -> bool:
    if not before or not now:
        print(f"COMPARE {name}: only in {'this tree' if now else 'the reference'}", flush=True)
        return True
    medians = statistics.median(before), statistics.median(now)
    worse = is_worse(name, *medians)
    runs = f"before {_listed(before)}; now {_listed(now)}"
    verdict = "WORSE" if worse else "ok"
    print(f"COMPARE {name} {medians[0]:.2f} -> {medians[1]:.2f} {verdict} ({runs})", flush=True)
    return not worse


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _run(checkout: Path, names: Sequence[str]) -> dict[str, float]:
    """One run of each measure with a checkout's own source and benchmarks."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"}
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--times", "1", *names],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {name: float(value) for name, value, _ in _LINE.findall(result.stdout)}
    if missing := set(names) - set(found):
        raise RuntimeError(f"{checkout}: no figure for {', '.join(missing)}\n{result.stderr}")
    return found


@contextmanager
def _checkout(reference: str) -> Iterator[Path]:
    git = ["git", "-C", str(_REPOSITORY), "worktree"]
    with tempfile.TemporaryDirectory(prefix="penstock-against-") as directory:
        path = Path(directory) / "checkout"
        subprocess.run([*git, "add", "--quiet", "--detach", path, reference], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", path], check=True)
