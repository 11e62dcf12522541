"""The page about types says what the code does."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Database
from tests.type_table import type_table

PAGE = Path(__file__).parents[2] / "docs" / "types.md"


def test_the_page_about_types_is_true(database: Database) -> None:
    with database.connect() as connection:
        made = type_table(connection)
    assert PAGE.read_text() == made, "make it again: python -m tests.type_table"
