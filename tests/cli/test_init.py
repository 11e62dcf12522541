"""`penstock init`: the page of settings."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from penstock.cli.template import TEMPLATE
from penstock.config import FileConfig, load_config
from penstock.registry import DESTINATIONS, STORES
from tests.cli.command import Penstock


def uncommented() -> dict[str, Any]:
    """The page with every default switched on, examples without a default left out."""
    lines = []
    for line in TEMPLATE.splitlines():
        setting = re.match(r"^(\s*)# ((?: *)[a-z_.]+:.*)$", line)
        lines.append(setting[1] + setting[2] if setting else line)
    text = "\n".join(line for line in lines if not re.match(r"^\s*#", line))
    data: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{[.]+\}", "secret", text))
    return data


def names(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        nested = [
            each
            for each in (field.annotation, *get_args(field.annotation))
            if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        found[name] = names(nested[0]) if nested else None
    if model is FileConfig:
        for registry, key in [(DESTINATIONS, "destination"), (STORES, "store")]:
            found[key] |= names(registry.find(FileConfig.model_fields[key].default.type).Settings)
    return found


def same(one: FileConfig, other: FileConfig) -> bool:
    """Whether two configurations mean the same: settings of a class have their defaults there."""
    parts = [(DESTINATIONS, "destination"), (STORES, "store")]
    for registry, key in parts:
        made = []
        for each in (one, other):
            component = getattr(each, key)
            model = registry.find(component.type).Settings
            made.append((component.type, model(**component.settings)))
        assert made[0] == made[1]
    return one.model_dump(exclude={"store", "destination"}) == other.model_dump(
        exclude={"store", "destination"}
    )


def test_the_page_is_a_valid_configuration_of_defaults(penstock: Penstock) -> None:
    assert penstock("init").code == 0
    config = load_config(penstock.directory / "penstock.yaml")
    expected = FileConfig(
        id="shop", publication_name="shop_pub", pg_connection=config.pg_connection
    )
    assert same(config, expected)


def test_the_page_names_every_setting() -> None:
    def missing(known: dict[str, Any], page: Any, path: str = "") -> list[str]:
        absent = [path + name for name in known if not isinstance(page, dict) or name not in page]
        for name, nested in known.items():
            if nested and isinstance(page, dict) and name in page:
                absent += missing(nested, page[name], f"{path}{name}.")
        return absent

    _, _, others = TEMPLATE.partition("whatever else libpq knows: ")
    mentioned = re.findall(r"\w+", others.partition(")")[0])
    known = names(FileConfig)
    known["pg_connection"] = {n: None for n in known["pg_connection"] if n not in mentioned}
    known["table_sync_copy"] = None  # one word says it all
    assert missing(known, uncommented()) == []


def test_the_defaults_on_the_page_are_the_defaults() -> None:
    page = uncommented()
    page["pg_connection"].pop("uri")
    page.pop("column_types")
    page["spark"] = {}
    shown = FileConfig(**page)
    default = FileConfig(id="shop", publication_name="shop_pub", pg_connection=shown.pg_connection)
    assert same(shown, default)
    assert shown.pg_connection.connect_timeout == type(shown.pg_connection)().connect_timeout


def test_the_page_tells_how_a_mirror_follows() -> None:
    assert "A mirror follows in place where it can" in TEMPLATE


def test_it_can_be_printed(penstock: Penstock) -> None:
    outcome = penstock("init", "--stdout")
    assert (outcome.code, outcome.stdout) == (0, TEMPLATE)
    assert not penstock.files()


def test_a_file_that_is_there_stays_unless_forced(penstock: Penstock) -> None:
    path = penstock.directory / "mine.yaml"
    path.write_text("id: mine")
    outcome = penstock("init", path)
    assert outcome.code == 2
    assert "--force" in outcome.hints[0]
    assert path.read_text() == "id: mine"
    assert penstock("init", path, "--force").code == 0
    assert path.read_text() == TEMPLATE


@pytest.mark.parametrize("path", ["no/such/directory.yaml", "."])
def test_a_file_that_cannot_be_written_is_a_clear_error(penstock: Penstock, path: str) -> None:
    outcome = penstock("init", path, "--force")
    assert outcome.code == 2
    assert len(outcome.errors) == len(outcome.hints) == 1
    assert "Traceback" not in outcome.stderr
