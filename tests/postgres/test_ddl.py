"""Messages of the event triggers, and of whoever else writes some."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.postgres.catalog import column_schemas
from penstock.postgres.ddl import Announcement, Rewrite, parse_message
from penstock.postgres.pgoutput import MESSAGE_HEADER, PREFIX
from penstock.postgres.types import arrow_type
from penstock.schema import Lsn, ReplicaIdentity, TableId, TableName, TableSchema


def column(number: int, name: str, type_oid: int = 23, type_modifier: int = -1) -> dict[str, Any]:
    return {
        "number": number,
        "name": name,
        "type_oid": type_oid,
        "type_modifier": type_modifier,
        "type_name": "some",
        "nullable": True,
        "generated": False,
        "filled": False,
        "fill": None,
    }


ANNOUNCEMENT: dict[str, Any] = {
    "oid": 16385,
    "schema": "public",
    "name": "t",
    "identity": "d",
    "plain": True,
    "key": [1],
    "columns": [column(1, "id"), column(3, "v", 1700, (10 << 16) + 2 + 4)],
}
REWRITE: dict[str, Any] = {"oid": 16385, "rewrite": 4}


def framed(content: str) -> bytes:
    head = b"M" + bytes(MESSAGE_HEADER - 1) + PREFIX.tobytes() + b"\0"
    return head + len(content).to_bytes(4, "big") + content.encode()


def parsed(data: Any) -> Rewrite | Announcement:
    return parse_message(framed(json.dumps(data)))


def test_what_the_triggers_write_is_understood() -> None:
    told = parsed(ANNOUNCEMENT)
    assert isinstance(told, Announcement)
    assert (told.oid, told.name, told.key) == (16385, TableName("public", "t"), (1,))
    assert told.identity is ReplicaIdentity.DEFAULT
    assert [c.name for c in told.columns] == ["id", "v"]
    assert parsed(REWRITE) == Rewrite(16385, 4)


def test_a_table_without_columns_or_key_has_null_there() -> None:
    told = parsed(ANNOUNCEMENT | {"key": None, "columns": None})
    assert isinstance(told, Announcement)
    assert told.key == told.columns == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"identity": "?"},
        {"identity": None},
        {"oid": "16385"},
        {"oid": 1 << 32},
        {"oid": True},
        {"schema": ""},
        {"name": "a\0b"},
        {"name": "\ud800"},
        {"plain": "yes"},
        {"key": [2]},
        {"key": {"1": 1}},
        {"key": "1"},
        {"columns": {}},
        {"columns": [{"number": 1}]},
        {"columns": ["id"]},
        {"columns": [column(1, "id"), column(1, "v")]},
        {"columns": [column(1, "id"), column(2, "id")]},
        {"columns": [column(1, "id") | {"later": 1}]},
        {"columns": [column(1, "id", 1 << 40)]},
        {"rewrite": "4"},
    ],
)
def test_anything_else_is_none_of_ours(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not an announcement"):
        parsed(ANNOUNCEMENT | wrong)


def test_a_message_without_bottom_is_none_of_ours() -> None:
    with pytest.raises(ValueError, match="not an announcement"):
        parse_message(framed("[" * 100_000))


texts = st.sampled_from(["d", "f", "n", "i", "", "\0", "\ud800", "id", "v", "Ä"])
scalars = st.none() | st.booleans() | st.integers() | st.integers(-3, 3000) | st.floats() | texts
anything = scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars, max_size=2)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A message with something else in some of its places."""
    message = deepcopy(draw(st.sampled_from([ANNOUNCEMENT, REWRITE])))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = message
        while True:
            steps = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not steps:
                break
            step = draw(st.sampled_from(steps))
            if isinstance(place[step], dict | list) and draw(st.booleans()):
                place = place[step]
                continue
            if isinstance(place, dict) and draw(st.integers(0, 4)) == 0:
                del place[step]
            else:
                place[step] = draw(anything)
            break
    return message


@given(mutated())
def test_what_is_understood_can_be_a_table(message: Any) -> None:
    try:
        told = parsed(message)
    except ValueError:
        return
    if isinstance(told, Rewrite):
        return
    columns = column_schemas(told.columns, told.key, {}, lambda oid: None)
    note = told.note(5, 0)
    schema = TableSchema(TableId(told.oid), told.name, columns, told.identity, Lsn(9), note)
    assert TableSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert str(schema.name).encode()
    for each in columns:
        arrow_type(each.type)
