"""Building a session: what is refused before Spark starts, and how quickly tasks do."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from penstock.destinations.delta.session import PACKAGE, SPARK_SETTINGS
from penstock.errors import ErrorKind, PenstockError
from penstock.spark.session import (
    _launch,
    build_session,
    check_java,
    default_settings,
    prepare_session,
)


def fake_java(home: Path, script: str, release: str | None = None) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


# Java.


def test_no_java_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PenstockError) as caught:
        check_java()
    assert caught.value.kind is ErrorKind.CONFIG
    assert "JAVA_HOME" in (caught.value.hint or "")


def test_a_java_home_without_java_is_not_healed_by_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PenstockError) as caught:
        check_java()
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("11", 'IMPLEMENTOR="x"\nJAVA_VERSION="11.0.2"\n'),
        ("8", 'JAVA_VERSION="1.8.0_292"\n'),
        ("11", None),
    ],
)
def test_an_old_java_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, release: str | None
) -> None:
    home = fake_java(tmp_path, f"echo 'openjdk version \"{version}.0.1\"' >&2", release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(PenstockError) as caught:
        check_java()
    assert f"Java {version}" in caught.value.message


def test_a_java_that_does_not_say_what_it_is_may_try(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, "exit 1")))
    check_java()


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, where no session runs yet."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_spark_that_does_not_start_is_one_error_without_a_trace(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "echo 'Error: Could not create the JVM' >&2; exit 1")
    done = run(
        """
        from penstock.errors import PenstockError
        from penstock.spark.session import build_session
        try:
            build_session()
        except PenstockError as error:
            print(error.kind, error)
        """,
        JAVA_HOME=str(home),
    )
    assert done.stdout.startswith("config Spark could not be started: Error: Could not create")
    assert done.stderr == ""


def test_the_last_words_of_a_jvm_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is known to have ended before they were read."""

    def launch(conf: object, popen_kwargs: dict[str, int]) -> None:
        os.write(popen_kwargs["stderr"], b"Error: Could not reserve enough space\n")
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    for _ in range(20):
        with pytest.raises(PenstockError, match="Could not reserve enough space"):
            _launch(SparkConf(loadDefaults=False))


def test_a_package_that_cannot_be_fetched_is_named(tmp_path: Path) -> None:
    done = run(
        f"""
        from penstock.errors import PenstockError
        from penstock.spark.session import build_session
        try:
            build_session(master="local[1]", config={{
                "spark.jars.packages": "io.delta:no-such-package:1.0",
                "spark.jars.ivy": "{tmp_path}",
            }})
        except PenstockError as error:
            print(error.kind, error)
        """
    )
    assert "config Spark could not fetch io.delta#no-such-package;1.0" in done.stdout
    assert done.stderr == ""


# Settings.


def test_every_default_can_be_overridden(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.warehouse.dir").startswith("file:")
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.appName == "penstock-tests"


def test_a_file_system_s_package_is_not_among_what_is_left_out() -> None:
    left_out = SPARK_SETTINGS["spark.jars.excludes"].split(",")
    for package, wanted in (("hadoop-aws", True), ("hadoop-client-runtime", False)):
        name = f"org.apache.hadoop:{package}"
        assert any(fnmatch.fnmatch(name, each) for each in left_out) is not wanted


def test_shuffles_are_as_wide_as_the_machine() -> None:
    assert default_settings("local[3]")["spark.sql.shuffle.partitions"] == "3"
    assert default_settings("local")["spark.sql.shuffle.partitions"] == "1"
    assert default_settings("local[*]")["spark.sql.shuffle.partitions"] == str(os.cpu_count())
    assert "spark.sql.shuffle.partitions" not in default_settings("spark://somewhere:7077")


def test_a_running_session_is_taken_over_only_when_asked(spark: SparkSession) -> None:
    with pytest.raises(PenstockError) as caught:
        build_session()
    assert caught.value.kind is ErrorKind.CONFIG
    assert build_session(adopt=True).sparkContext is spark.sparkContext


# What a session can do.


def test_delta_tables_can_be_written_merged_and_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    spark.range(10).write.format("delta").save(str(path))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors'=true)")
    spark.sql(f"""
        MERGE INTO delta.`{path}` t USING (SELECT id + 5 AS id FROM range(10)) s ON t.id = s.id
        WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *
    """)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 0")
    rows = spark.read.format("delta").load(str(path)).collect()
    assert sorted(row.id for row in rows) == [1, 2, 3, 4, *range(10, 15)]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").count()
    assert history == 4


def test_parquet_becomes_delta_in_place(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "rows"))
    spark.sql(f"CONVERT TO DELTA parquet.`{tmp_path / 'rows'}`")
    assert spark.read.format("delta").load(str(tmp_path / "rows")).count() == 3


def test_tasks_run_this_python_without_archives_on_their_path(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    def look(_: int) -> str:
        import sys

        loaded = "penstock.postgres.copy" in sys.modules
        return "\n".join([sys.executable, str(loaded), *sys.path])

    frame = spark.range(1).select(udf(look, "string", useArrow=False)("id"))
    executable, loaded, *path = frame.collect()[0][0].splitlines()
    assert executable == sys.executable
    assert loaded == "True"
    archives = [entry for entry in path if entry.endswith((".jar", ".zip"))]
    assert [entry for entry in archives if Path(entry).exists()] == []


def test_preparing_a_session_keeps_the_users_packages(spark: SparkSession) -> None:
    context = spark.sparkContext
    before = list(context._python_includes or [])
    try:
        context._python_includes = [*before, "mine.zip", "delta.jar"]
        prepare_session(spark)
        assert context._python_includes == [*before, "mine.zip"]
    finally:
        context._python_includes = before


def test_the_delta_package_is_the_one_that_is_installed() -> None:
    from importlib.metadata import version

    assert PACKAGE.endswith(":" + version("delta-spark"))
