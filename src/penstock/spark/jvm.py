"""The JVM that Spark runs in: a Java that will do, and a start without noise.

Spark talks a lot while it starts, above all where it fetches jars. What the JVM
writes to its standard error therefore goes through a pipe of ours: it is kept
back while Spark starts, shown only if starting fails, as one error with a
remedy, and passed on line by line afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ErrorKind, PenstockError

if TYPE_CHECKING:
    from pyspark import SparkConf

MINIMUM_JAVA = 17

# Lines that every healthy session writes and nobody needs.
_NOISE = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j profile"
    rb"|Setting default log level to|Setting Spark log level to|To adjust logging level use"
)


def check_java() -> None:
    """Refuse a missing or too old Java before Spark prints a trace about it."""
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        raise PenstockError(
            ErrorKind.CONFIG,
            f"no Java at JAVA_HOME ({home})" if home else "no Java found, and Spark needs one",
            hint=f"install a JDK, version {MINIMUM_JAVA} or later, and put `java` on the PATH "
            "or set JAVA_HOME to it",
        )
    version = _java_version(java)
    if version is not None and version < MINIMUM_JAVA:
        raise PenstockError(
            ErrorKind.CONFIG,
            f"{java} is Java {version}, and Spark needs {MINIMUM_JAVA} or later",
            hint=f"install JDK {MINIMUM_JAVA} or later and set JAVA_HOME to it",
        )


def find_java() -> Path | None:
    """The `java` that Spark will start, if there is one."""
    home = os.environ.get("JAVA_HOME")
    if home:
        # Spark's scripts take JAVA_HOME without a look at the PATH.
        java = Path(home) / "bin" / "java"
        return java if os.access(java, os.X_OK) else None
    found = shutil.which("java")
    return Path(found) if found else None


def _java_version(java: Path) -> int | None:
    """The major version; from the file beside it where there is one, to save starting it."""
    release = java.resolve().parent.parent / "release"
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
        found = re.search(r'^JAVA_VERSION="?(?:1\.)?(\d+)', text, re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        try:
            run = subprocess.run(
                [java, "-version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(found[1]) if found else None


class _JvmStderr:
    """The JVM's standard error: kept back while Spark starts, passed on afterwards."""

    def __init__(self) -> None:
        self._held: deque[bytes] | None = deque(maxlen=200)
        readable, self.fd = os.pipe()
        threading.Thread(
            target=self._pump, args=(readable,), name="spark-stderr", daemon=True
        ).start()

    def release(self) -> list[str]:
        """Pass on from now on; what was kept back is the answer."""
        held, self._held = self._held, None
        return [line.decode(errors="replace").rstrip() for line in held or ()]

    def _pump(self, readable: int) -> None:
        with os.fdopen(readable, "rb") as lines:
            for line in lines:
                held = self._held
                if held is not None:
                    held.append(line)
                elif not _NOISE.search(line):
                    os.write(2, line)


def launch(conf: SparkConf) -> None:
    """Start the JVM of this process with these settings."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    start: Any = launch_gateway
    stderr = _JvmStderr()
    try:
        gateway = start(conf=conf, popen_kwargs={"stderr": stderr.fd})
    except PySparkRuntimeError:
        raise _start_failure(stderr.release()) from None
    finally:
        os.close(stderr.fd)
    stderr.release()
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _start_failure(output: list[str]) -> PenstockError:
    text = "\n".join(output)
    missing = re.findall(r":: ([\w.\-]+#[\w.\-]+;[\w.\-]+): not found", text)
    if missing or "unresolved dependenc" in text.lower():
        what = ", ".join(sorted(set(missing))) or "a package"
        return PenstockError(
            ErrorKind.CONFIG,
            f"Spark could not fetch {what}",
            hint="it comes from Maven Central at the first start: let this machine reach it, "
            "name a mirror in spark.jars.repositories, or name local files in spark.jars and "
            'set spark.jars.packages to ""',
        )
    telling = [line for line in output if re.search(r"rror|xception", line)] or output[-1:]
    reason = telling[0].strip() if telling else "its process ended without a word"
    return PenstockError(
        ErrorKind.CONFIG,
        f"Spark could not be started: {reason}",
        hint="look at Java (17 or later), at the memory asked for (spark.driver.memory) and at "
        "the settings handed to Spark",
    )
