"""`make demo` on a fresh clone, with no cache of anything."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import Measure, timed

REPOSITORY = Path(__file__).parent.parent


def demo() -> Measure:
    """Minutes from `git clone` to the demo's end; its own 30 seconds are included."""
    with tempfile.TemporaryDirectory(prefix="penstock-clone-") as directory:
        home = Path(directory) / "home"
        home.mkdir()
        clone = Path(directory) / "penstock"
        environment = {
            name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV",)
        } | {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "PIP_CACHE_DIR": str(home / "pip"),
            "UV_CACHE_DIR": str(home / "uv"),
            "JAVA_TOOL_OPTIONS": f"-Duser.home={home}",
        }
        with timed() as timing:
            subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
            subprocess.run(
                ["make", "demo"], cwd=clone, env=environment, check=True, stdin=subprocess.DEVNULL
            )
    return Measure("demo_fresh_clone", timing.seconds / 60, 5, 3, "min", below=True)
