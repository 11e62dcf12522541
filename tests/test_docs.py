"""The pages under `docs/` are true: their code blocks run, and their links lead somewhere.

A fenced block says by its language what it is. `sql` runs as superuser in the test's database,
`yaml NAME` and `python NAME` are files, `python` alone is a program, and each `$ ` line of a
`console` block is a command. More words follow the language, which readers do not see:
`background` lets the command run until the page ends, `until=WORD` repeats it until WORD is in
its output, `after-stop` runs the block when the background command has been stopped.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psycopg.conninfo
import pytest

from penstock.spark.session import SHORT_LIVED
from tests.conftest import Database

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TRIED = ["index.md", "guides/first-pipeline.md", "guides/configure-postgres.md"]
PATIENCE = 240.0

PENSTOCK_YAML = """
id: shop
publication_name: shop_pub
pg_connection: {host: localhost, dbname: shop, user: penstock}
destination: {type: delta, root: ./lake}
"""


class Block(NamedTuple):
    language: str
    words: list[str]
    text: str

    @property
    def until(self) -> str | None:
        found = [word.removeprefix("until=") for word in self.words if word.startswith("until=")]
        return found[0] if found else None


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(language, words.split(), text) for language, words, text in found]


class Reader:
    """Follows a page to the letter, but connects to the test's own server."""

    def __init__(self, database: Database, directory: Path, stack: ExitStack) -> None:
        self._database = database
        self._directory = directory
        self._stack = stack
        self._background: list[subprocess.Popen[bytes]] = []
        self.role = f"penstock_{database.name}"
        self._where = psycopg.conninfo.conninfo_to_dict(database.dsn)
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PGPORT": str(self._where.get("port", 5432)),
            "JDK_JAVA_OPTIONS": SHORT_LIVED["spark.driver.extraJavaOptions"],
            "COLUMNS": "200",
        }

    def follow(self, block: Block) -> None:
        if "after-stop" in block.words:
            self.stop()
        match block.language:
            case "sql":
                self._run_sql(block.text)
            case "yaml" | "python" if block.words:
                (self._directory / block.words[0]).write_text(self._adapted(block.text))
            case "python":
                self._run([sys.executable, "-c", self._adapted(block.text)])
            case "console":
                for line in block.text.splitlines():
                    if line.startswith("$ "):
                        self._run_command(line.removeprefix("$ "), block)
            case _:
                pytest.fail(f"nobody knows how to try a block of {block.language}")

    def stop(self) -> None:
        for process in self._background:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
            assert process.returncode == 0
        self._background.clear()

    def _adapted(self, text: str) -> str:
        """The text with the test's server, database and role for the page's."""
        host, name = self._where["host"], self._database.name
        for before, after in (
            (r"host(: |=\W?)localhost", rf"host\g<1>{host}"),
            (r"dbname(: |=\W?)shop", rf"dbname\g<1>{name}"),
            (r"(user: |user=\W?|ROLE |TO )penstock\b", rf"\g<1>{self.role}"),
        ):
            text = re.sub(before, after, text)
        return text

    def _run_sql(self, text: str) -> None:
        with self._database.connect() as connection:
            for statement in filter(str.strip, self._adapted(text).split(";\n")):
                connection.execute(statement)

    def _run_command(self, command: str, block: Block) -> None:
        if "background" in block.words:
            log = self._stack.enter_context((self._directory / "background.log").open("wb"))
            process = subprocess.Popen(
                command.split(),
                cwd=self._directory,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            self._stack.callback(process.kill)
            self._background.append(process)
            return
        deadline = time.monotonic() + PATIENCE
        while True:
            printed = self._run(command.split(), may_fail=block.until is not None)
            if block.until is None or block.until in printed:
                return
            assert time.monotonic() < deadline, f"{command}: {block.until} never came\n{printed}"

    def _run(self, command: list[str], *, may_fail: bool = False) -> str:
        result = subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert may_fail or result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout if result.returncode == 0 else result.stderr


@pytest.mark.parametrize("page", TRIED)
def test_the_blocks_of_a_page_run(page: str, database: Database, tmp_path: Path) -> None:
    steps = blocks(DOCS / page)
    with ExitStack() as stack:
        reader = Reader(database, tmp_path, stack)
        if not any("CREATE ROLE" in step.text for step in steps):
            reader.follow(Block("sql", [], "CREATE ROLE penstock LOGIN SUPERUSER"))
        stack.callback(drop_role, database, reader.role)
        reader.follow(Block("yaml", ["penstock.yaml"], PENSTOCK_YAML))
        for step in steps:
            reader.follow(step)
        reader.stop()


def drop_role(database: Database, role: str) -> None:
    """Roles belong to the server, which other tests share."""
    with database.connect() as connection:
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
