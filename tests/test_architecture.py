"""Dependencies between the rooms of `src/penstock` point one way.

`ALLOWED` is the design's line, spelled out: for each room, the rooms it may import.
It is closed under "to the right of", so a new room has to find its place here
before anything compiles against it. Imports for types alone count too: a room
that must name another's types depends on it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "penstock"

BASE = {
    "schema",
    "events",
    "states",
    "errors",
    "findings",
    "config",
    "yaml_file",
    "failpoints",
    "signals",
    "lazy",
    "registry",
    "directories",
}
# One subject whose parts lie at different heights: each of its modules is a room of its own.
LAYERED = {"publication_drift"}
DRIFT_VALUES = {"publication_drift.terms", "publication_drift.sent_partitions"}
POSTGRES = BASE | DRIFT_VALUES | {"postgres", "publication_drift.catalog"}
JOURNAL = POSTGRES | {"journal"}
# The values that destinations get, and their Spark reader, which they load at first use.
SPARK = JOURNAL | {"changes", "spark"}
DESTINATIONS = SPARK | {"stores", "destinations"}
PIPELINE = DESTINATIONS | {"pipeline", "targets", "publication_drift.drift"}
EVERYTHING = PIPELINE | {"cli", "demo", "service", "testing"}

ALLOWED: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    **dict.fromkeys(DRIFT_VALUES, BASE),
    "publication_drift.catalog": POSTGRES,
    "publication_drift.drift": PIPELINE,
    "postgres": POSTGRES,
    "journal": JOURNAL,
    "stores": POSTGRES | {"stores"},
    "changes": SPARK,
    "spark": SPARK,
    "destinations": DESTINATIONS,
    "pipeline": PIPELINE,
    "targets": PIPELINE,
    "service": PIPELINE | {"service"},
    "cli": PIPELINE | {"service", "cli", "demo", "testing"},
    "demo": PIPELINE | {"cli", "demo", "testing"},
    "testing": EVERYTHING,
}

# The package itself: what `import penstock` offers, and what `python -m penstock` runs.
FRONT = {"__init__", "__main__", "publication_drift.__init__"}

WITHOUT_SPARK = ("postgres", "journal")
SPARK_PACKAGES = {"pyspark", "py4j", "delta"}


class Import(NamedTuple):
    """One import: the file and line where it stands, and the absolute name it may load."""

    where: str
    target: str


def room_of(path: Path, source: Path = SOURCE) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[: 2 if parts[0] in LAYERED else 1])


def modules(room: str | None = None) -> list[Path]:
    paths = sorted(SOURCE.rglob("*.py"))
    return [path for path in paths if room is None or room_of(path) == room]


def imports_of(path: Path, source: Path = SOURCE) -> Iterator[Import]:
    """Every import in the file, at any depth."""
    inside = path.relative_to(source)
    package = ["penstock", *inside.parent.parts]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(f"{inside}:{node.lineno}", name)


def imported_room(target: str, source: Path = SOURCE) -> str | None:
    """The room that an absolute name belongs to, or None if it is not ours."""
    parts = target.split(".")
    if parts[0] != "penstock":
        return None
    room = parts[1] if len(parts) > 1 else "__init__"
    if room in LAYERED:
        return ".".join(parts[1:3])
    is_room = (source / room).is_dir() or (source / f"{room}.py").exists()
    return room if is_room else "__init__"  # a name of the package, such as __version__


def test_every_module_belongs_to_a_known_room() -> None:
    rooms = {room_of(path) for path in modules()}
    assert rooms - FRONT <= set(ALLOWED), "give the new room its place in ALLOWED"


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_from_rooms_to_its_right(room: str) -> None:
    wrong = [
        f"{each.where} imports {each.target}"
        for path in modules(room)
        for each in imports_of(path)
        if each.target != "penstock.__version__"
        and imported_room(each.target) not in {None, *ALLOWED[room]}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", WITHOUT_SPARK)
def test_a_room_that_knows_nothing_of_spark_names_none(room: str) -> None:
    wrong = [
        f"{each.where} imports {each.target}"
        for path in modules(room)
        for each in imports_of(path)
        if each.target.split(".")[0] in SPARK_PACKAGES
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", WITHOUT_SPARK)
def test_a_room_that_knows_nothing_of_spark_loads_none(room: str) -> None:
    names = [
        ".".join(["penstock", *path.relative_to(SOURCE).with_suffix("").parts])
        for path in modules(room)
        if path.name != "__main__.py"
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name.removesuffix('.__init__'))\n"
        f"print(sorted(set(sys.modules) & {SPARK_PACKAGES!r}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_every_module_is_on_the_map() -> None:
    page = (SOURCE.parent.parent / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"^\| `([\w/]+\.py)` \| \S", page, re.MULTILINE))
    found = {
        str(path.relative_to(SOURCE))
        for path in modules()
        if path.name != "__init__.py" or len(path.read_text().splitlines()) > 2
    }
    assert found - named == set(), "describe them in docs/architecture.md"
    assert named - found == set(), "docs/architecture.md names modules that are gone"


def test_signal_handlers_are_put_in_one_place() -> None:
    """Others would take locks in them (`Event.set`), and now and then wait for themselves.

    The demo's only raises, and what it raises ends the demo.
    """
    places = {
        str(path.relative_to(SOURCE)) for path in modules() if "signal.signal(" in path.read_text()
    }
    assert places == {"signals.py", "demo/demo.py"}


def test_the_check_sees_relative_nested_and_package_imports(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "spark").mkdir()
    path = tmp_path / "postgres" / "copy.py"
    path.write_text(
        "from . import values\n"
        "from ..spark import session\n"
        "from penstock import spark, __version__\n"
        "def late():\n"
        "    import pyspark.sql as sql\n"
    )
    seen = [
        (each.where, each.target, imported_room(each.target, tmp_path))
        for each in imports_of(path, tmp_path)
    ]
    assert sorted(seen) == [
        ("postgres/copy.py:1", "penstock.postgres.values", "postgres"),
        ("postgres/copy.py:2", "penstock.spark.session", "spark"),
        ("postgres/copy.py:3", "penstock.__version__", "__init__"),
        ("postgres/copy.py:3", "penstock.spark", "spark"),
        ("postgres/copy.py:5", "pyspark.sql", None),
    ]
