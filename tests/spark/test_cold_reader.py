"""What only the first reads of a young JVM show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FIRST_READ = """
import sys
from pathlib import Path

from penstock.spark.session import INTERPRETED, build_session
from penstock.testing.sample_tables import NOTES, note
from penstock.testing.segments import Script, insert

session = build_session("cold", master="local[1]", config=INTERPRETED)
script = Script(NOTES, Path(sys.argv[1]), session)
batch = script.batch(*([insert(note(number))] for number in range(3000)))
print(batch.changes.where(f"commit_lsn > {script.end.value // 2}").count())
"""


def test_a_filter_on_a_column_with_a_large_dictionary(tmp_path: Path) -> None:
    """Parquet's reader fails at a dictionary of more than 8 KiB, until it has read a page as large.

    (So with a TRUNCATE in the first batch after a start: what came before it is left out.)
    """
    done = subprocess.run(
        [sys.executable, "-c", FIRST_READ, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "1500\n"), done.stderr[-2000:]
