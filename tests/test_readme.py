"""The README's examples are the files in `examples/`, and they work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config import load_config
from penstock.spark.session import SHORT_LIVED
from tests.conftest import Database

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def block(language: str, text: str = README) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_python_example_is_the_file_and_short() -> None:
    assert block("python") == (ROOT / "examples" / "shop.py").read_text().split("\n\n", 1)[1]
    lines = [line for line in block("python").splitlines() if line.strip()]
    assert len(lines) <= 15


def test_the_yaml_example_is_the_file_and_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "examples" / "shop.yaml"
    settings = [line for line in path.read_text().splitlines(True) if not line.startswith("#")]
    assert block("yaml") == "".join(settings)
    monkeypatch.setenv("PGPASSWORD", "secret")
    config = load_config(path)
    assert config.slot_name == "penstock_shop"
    assert config.pg_connection.parameters()["password"] == "secret"


def test_the_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_the_python_example_runs(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE customers (id bigint PRIMARY KEY, name text)")
        connection.execute("INSERT INTO customers VALUES (1, 'Ada'), (2, NULL)")
        connection.execute("CREATE PUBLICATION shop_pub FOR TABLE customers")
    program = block("python")
    connect = 'PgConnection(host="localhost", dbname="shop", user="penstock")'
    assert connect in program
    program = program.replace(connect, f'PgConnection(uri="{database.dsn}")')
    # Where the example would wait until it is stopped, it is stopped.
    program = re.sub(r"pipeline\.wait\(\).*", "pipeline.shutdown()", program)
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "JDK_JAVA_OPTIONS": SHORT_LIVED["spark.driver.extraJavaOptions"]},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "public.customers" in result.stdout
    assert (tmp_path / "lake" / "public" / "customers" / "_delta_log").is_dir()
