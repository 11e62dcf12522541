"""The session of one command, and how it is left."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
import logging
import psutil
from penstock.cli.spark import spark_session

logging.basicConfig(format="%(message)s: %(reason)s")
logging.getLogger("py4j").setLevel(logging.CRITICAL)
try:
    with spark_session("penstock-test", master="local[1]") as session:
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
