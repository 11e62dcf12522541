"""Destinations and stores by name, by entry point and by path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config import DestinationConfig, StoreConfig, load_config
from penstock.destinations import MemoryDestination
from penstock.errors import ErrorKind, PenstockError
from penstock.registry import DESTINATIONS, STORES
from penstock.stores import MemoryStore, SqlStore

MODULE = """
from pydantic import BaseModel, Field

class Post:
    class Settings(BaseModel):
        endpoint: str
        attempts: int = Field(3, gt=0)
    def __init__(self, endpoint, attempts):
        self.endpoint, self.attempts = endpoint, attempts

class Plain:
    def __init__(self, place, *, size=1):
        if size > 9:
            raise ValueError("size is at most 9")
        self.place, self.size = place, size

class Anything:
    def __init__(self, **settings):
        self.settings = settings

class Open:
    class Settings(BaseModel, extra="allow"):
        known: int = 1
    def __init__(self, **settings):
        self.settings = settings

number = 3
"""


@pytest.fixture(autouse=True)
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `thirdparty` that is installed, as pip would do it: a module and a dist-info."""
    (tmp_path / "thirdparty.py").write_text(MODULE)
    information = tmp_path / "thirdparty-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[penstock.destinations]\npost = thirdparty:Post\n"
        "[penstock.stores]\nplain = thirdparty:Plain\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("thirdparty", None)


def refusal(registry: object, name: str, **settings: object) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        registry.build(name, settings)  # type: ignore[attr-defined]
    assert caught.value.kind is ErrorKind.CONFIG
    assert caught.value.hint
    return caught.value


def test_the_included_ones_have_their_names(tmp_path: Path) -> None:
    assert isinstance(DESTINATIONS.build("memory", {}), MemoryDestination)
    assert DESTINATIONS.build("delta", {"root": str(tmp_path), "mode": "history"}).mode == "history"
    assert DESTINATIONS.build("null", {}).name == "null"
    assert isinstance(STORES.build("memory", {}), MemoryStore)
    assert isinstance(STORES.build("sql", {"url": f"sqlite:///{tmp_path}/s.db"}), SqlStore)


def test_a_class_is_added_by_its_path() -> None:
    built = DESTINATIONS.build("thirdparty:Post", {"endpoint": "http://h", "attempts": "5"})
    assert (built.endpoint, built.attempts) == ("http://h", 5)
    built = STORES.build("thirdparty:Plain", {"place": "here"})
    assert (built.place, built.size) == ("here", 1)


def test_a_class_is_added_by_an_entry_point() -> None:
    assert "post" in DESTINATIONS.names()
    assert DESTINATIONS.build("post", {"endpoint": "http://h"}).attempts == 3
    assert STORES.names() == ["memory", "plain", "sql"]
    assert STORES.build("plain", {"place": "here", "size": 2}).size == 2


def test_a_class_that_takes_anything_gets_everything() -> None:
    assert DESTINATIONS.build("thirdparty:Anything", {"a": 1}).settings == {"a": 1}
    assert DESTINATIONS.build("thirdparty:Open", {"a": 2}).settings == {"known": 1, "a": 2}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("detla", "destination.type: there is no destination detla: did you mean delta?"),
        ("pots", "did you mean post?"),
        ("no.such.module:Class", "no.such.module:Class cannot be imported: No module named 'no'"),
        ("thirdparty:Pst", "thirdparty has no class Pst: did you mean Post?"),
        ("thirdparty:number", "thirdparty has no class number"),
    ],
)
def test_an_unknown_type_is_named_with_the_nearest(name: str, problem: str) -> None:
    assert problem in refusal(DESTINATIONS, name).message


def test_an_unknown_key_is_named_with_the_nearest() -> None:
    error = refusal(DESTINATIONS, "delta", rot="x")
    assert error.message == "unknown key destination.rot: did you mean root?"
    assert error.hint == "destination takes the keys type, mode, root"
    error = refusal(STORES, "thirdparty:Plain", plce="x")
    assert "unknown key store.plce: did you mean place?" in error.message
    assert "store.place is missing" in error.message
    assert "unknown key store.url: known: none" in refusal(STORES, "memory", url="x").message


def test_a_wrong_value_is_named() -> None:
    error = refusal(DESTINATIONS, "post", attempts=0, endpont="x")
    assert "unknown key destination.endpont: did you mean endpoint?" in error.message
    assert "destination.endpoint is missing" in error.message
    assert "destination.attempts: Input should be greater than 0" in error.message
    assert "size is at most 9" in refusal(STORES, "thirdparty:Plain", place="x", size=10).message


def test_a_file_names_them(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    minimal = "id: shop\npublication_name: p\npg_connection: {host: h}\n"
    path.write_text(minimal + "destination: {type: null}\nstore: {url: 'sqlite:///a.db'}\n")
    config = load_config(path)
    assert config.destination == DestinationConfig(type="null")
    assert config.store == StoreConfig(type="sql", url="sqlite:///a.db")
    path.write_text(minimal + "destination: {type: 'thirdparty:Post', endpoint: e}\n")
    assert load_config(path).destination.settings == {"endpoint": "e"}
