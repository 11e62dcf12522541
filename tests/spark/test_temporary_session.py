"""The session of one command, and how it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock.spark.session import SHORT_LIVED

PROGRAM = """
import logging
import psutil
from penstock.spark.temporary_session import temporary_session

logging.basicConfig(format="%(message)s: %(reason)s")
logging.getLogger("py4j").setLevel(logging.CRITICAL)
try:
    with temporary_session("penstock-test", master="local[1]") as session:
        session.range(1).count()
        for child in psutil.Process().children(recursive=True):
            if child.name() == "java":
                child.kill()
                child.wait()
        raise ValueError("the cause")
except ValueError as error:
    print(error)
from pyspark import SparkContext
print(SparkContext._gateway, psutil.Process().children(recursive=True))
"""


def test_a_jvm_that_was_killed_does_not_hide_the_cause_and_is_left() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["the cause", "None []"], done.stderr
    assert "spark did not stop: ConnectionRefusedError" in done.stderr
    assert "Traceback" not in done.stderr


PASSING = """
from penstock.spark.temporary_session import temporary_session

with temporary_session("penstock-test", master="local[1]", config=SETTINGS) as session:
    session.range(1000).repartition(2).count()
"""


@pytest.mark.parametrize("ended", ["", "    import os; os.kill(session._sc._gateway.proc.pid, 9)"])
def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, ended: str) -> None:
    """Also where the JVM was killed, and could not tidy up itself."""
    program = PASSING.replace("SETTINGS", repr(SHORT_LIVED)) + ended
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={tmp_path}",
        },
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
