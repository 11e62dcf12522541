"""Build a Spark session that suits Penstock, or make an existing one fit.

Two things here are not obvious. Spark's jars for Delta arrive through
`spark.jars.packages`, which talks a lot: what the JVM writes to its standard
error goes through a pipe of ours, is kept back while Spark starts, and is shown
only if starting fails, as one error with a remedy. And Spark ships those jars
to every Python task as if they were Python packages, whose directories each
task then reads again; `prepare_session` takes them off that list (DESIGN,
"Python tasks start slowly").

Everything set here is a default: a value in `config` wins.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ErrorKind, PenstockError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("penstock.spark")

MINIMUM_JAVA = 17

_LAST_WORDS_S = 10.0

# For sessions of a minute or a test: a JVM that compiles quickly rather than well
# does their work in half the processor time. Left to itself such a JVM has room for 48 MB
# of compiled code, and once that is full interprets the rest, for ever. To verify the classes
# that Spark brings is a fifth of what is left (19 s instead of 23 for the first three commits).
SHORT_LIVED = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:ReservedCodeCacheSize=240m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}
# And for many small batches of ever new shapes: what is generated for one of them is not
# worth compiling.
INTERPRETED = SHORT_LIVED | {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# Lines that every healthy session writes and nobody needs. The last one is Delta's, of every
# read with a condition where rows are marked as deleted: it looks through all of them then.
_NOISE = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j profile"
    rb"|Setting default log level to|Setting Spark log level to|To adjust logging level use"
    rb"|Failed to translate filter .*__delta_internal_is_row_deleted"
)


def build_session(
    app_name: str = "penstock",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    adopt: bool = False,
) -> SparkSession:
    """A Spark session, ready for Penstock's jobs.

    `master` is `local[*]` unless said otherwise. `config` is handed to Spark and
    wins over every default. A context that runs in this process already is
    taken over only with `adopt`; without it, that is an error, since its
    settings could no longer be changed.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        if not adopt:
            raise PenstockError(
                ErrorKind.CONFIG,
                "a Spark session is already running in this process",
                hint="hand it to Penstock (spark=...), or stop it first",
            )
        return prepare_session(SparkSession.builder.getOrCreate())
    given = dict(config or {})
    master = given.pop("spark.master", None) or master or "local[*]"
    settings = default_settings(master) | given
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name)
    conf.setAll(list(settings.items()))
    check_java()
    with _python_of_this_process(master):
        if SparkContext._gateway is None:
            _launch(conf)
        builder = SparkSession.builder.master(master).appName(app_name)
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    return prepare_session(session)


def prepare_session(session: SparkSession) -> SparkSession:
    """Make Python tasks of a session start quickly; harmless to repeat."""
    context = session.sparkContext
    includes = context._python_includes
    if includes:
        context._python_includes = [name for name in includes if not name.endswith(".jar")]
    return session


def stop_session(session: SparkSession) -> None:
    """Stop a session. One whose JVM has died cannot be: that is logged, and hides no cause."""
    try:
        session.stop()
    except Exception as error:
        logger.warning("spark did not stop", extra={"reason": repr(error)})


def start_workers(session: SparkSession) -> None:
    """Let Python workers start now, a second or two before the first copy needs them."""
    from pyspark.sql.functions import udf

    def nothing(_: int) -> str:
        return ""

    tasks = session.sparkContext.defaultParallelism
    session.range(0, tasks, 1, tasks).select(udf(nothing, "string", useArrow=False)("id")).collect()


def default_settings(master: str) -> dict[str, str]:
    """What a session of ours is set to, for a master."""
    local = master.startswith("local")
    settings = {
        "spark.driver.memory": "2g",
        # Several tables are worked on at once, from threads; none may wait for
        # another's long job.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "penstock.spark.worker_daemon",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
    }
    if local:
        settings |= {
            "spark.sql.shuffle.partitions": str(_cores(master)),
            # The machine's own name may resolve to an address that a VPN or a
            # firewall makes unreachable.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return settings


def check_java() -> None:
    """Refuse a missing or too old Java before Spark prints a trace about it."""
    java = _find_java()
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


def _find_java() -> Path | None:
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


def _cores(master: str) -> int:
    found = re.fullmatch(r"local\[(\d+)(?:,\s*\d+)?\]", master)
    if found:
        return int(found[1])
    return 1 if master == "local" else os.cpu_count() or 1


@contextmanager
def _python_of_this_process(master: str) -> Iterator[None]:
    """Let local tasks run this interpreter, also where its environment is not activated."""
    if not master.startswith("local") or "PYSPARK_PYTHON" in os.environ:
        yield
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"]


class _JvmStderr:
    """The JVM's standard error: kept back while Spark starts, passed on afterwards."""

    def __init__(self) -> None:
        self._held: deque[bytes] | None = deque(maxlen=200)
        readable, self.fd = os.pipe()
        self._thread = threading.Thread(
            target=self._pump, args=(readable,), name="spark-stderr", daemon=True
        )
        self._thread.start()

    def release(self) -> None:
        """Pass on from now on; what was kept back is of no interest."""
        self._held = None

    def last_words(self) -> list[str]:
        """What a JVM that has ended left to read. Close `fd` before."""
        self._thread.join(_LAST_WORDS_S)  # to its end, unless a child of the JVM lives on
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


def _launch(conf: SparkConf) -> None:
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    launch: Any = launch_gateway
    stderr = _JvmStderr()
    try:
        try:
            gateway = launch(conf=conf, popen_kwargs={"stderr": stderr.fd})
        finally:
            os.close(stderr.fd)
    except PySparkRuntimeError:
        raise _start_failure(stderr.last_words()) from None
    stderr.release()
    _leave_stopping_to_us(gateway)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _leave_stopping_to_us(gateway: Any) -> None:
    """Have the JVM ignore SIGTERM, as pyspark has it ignore SIGINT.

    Service managers, and `timeout`, send it to every process of a command: the JVM ended at
    once, and with it the writes that were to finish. It ends with us in any case, when its
    standard input does.
    """
    signals = gateway.jvm.sun.misc
    signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)


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


# What a session of our own sets. It begins with the settings of the application's cluster, and
# some of these would change rows without an error: corrupt files skipped, old dates moved to
# another calendar, `timestamp` read without a zone, `${env:HOME}` substituted in names and keys
# (and the environment's values shown in errors).
SETTINGS = {
    # A commit without rows has our mark all the same: a copy of an empty table, an empty batch.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
}


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside `spark` that reads and writes what is there."""
    session = spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session
