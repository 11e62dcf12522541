"""Ctrl-C ends a program that uses `Pipeline`, quietly."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.session import SHORT_LIVED
from tests.conftest import Database

PROGRAM = """
import sys, threading
from penstock import PgConnection, Pipeline, PipelineConfig
from penstock.config import SparkConfig
from penstock.destinations import MemoryDestination
from penstock.stores import MemoryStore

config = PipelineConfig(
    id="interrupted",
    publication_name="p",
    pg_connection=PgConnection(uri={dsn!r}),
    spark=SparkConfig(master="local[1]", config={settings!r}),
)
with Pipeline(config, store=MemoryStore(), destination=MemoryDestination()) as pipeline:
    pipeline.wait_until_ready(timeout=120)

    def announce():
        # Only when the main thread waits: a signal that comes earlier meets other code.
        main = threading.main_thread().ident
        while sys._current_frames()[main].f_code.co_filename != threading.__file__:
            threading.Event().wait(0.01)
        print("ready", flush=True)

    threading.Thread(target=announce, daemon=True).start()
    {body}
print(pipeline.status().running)
"""


@pytest.mark.parametrize(
    ("body", "printed", "code"),
    [("pipeline.wait()", "False\n", 0), ("threading.Event().wait()", "", 130)],
)
def test_ctrl_c_shuts_the_pipeline_down_without_a_traceback(
    database: Database, tmp_path: Path, body: str, printed: str, code: int
) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY); INSERT INTO t VALUES (1)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
    program = PROGRAM.format(dsn=database.dsn, settings=SHORT_LIVED, body=body)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=120)
    assert (first, rest, process.returncode) == ("ready\n", printed, code), stderr
    assert "Traceback" not in stderr
