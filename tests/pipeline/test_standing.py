"""How a table stands in the catalog, look after look."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.config import PgConnection, PipelineConfig
from penstock.destinations import MemoryDestination
from penstock.journal.journal import Journal
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.source_watch import Membership
from penstock.pipeline.standing import Standing, forget_terms
from penstock.postgres.catalog import PublishedTable
from penstock.postgres.terms import Partition, Terms
from penstock.schema import (
    ZERO_LSN,
    ColumnSchema,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)
from penstock.stores import MemoryStore

LONG = ValueType(ValueKind.LONG)
ID = ColumnSchema("id", 1, LONG, 20, key_position=0)
TABLE = TableSchema(TableId(7), TableName("public", "t"), (ID,))
PART = Partition("public.t_1", ("5",), attached=False)
TERMS = Terms(frozenset({"table 1"}), None, {8: PART})
CHANGED = replace(TERMS, row_filter="(id > 1)")


def published(terms: Terms, schema: TableSchema = TABLE) -> PublishedTable:
    return PublishedTable(schema, terms.row_filter, "p", 0, terms)


def look() -> Membership:
    return Membership((), ZERO_LSN, time.monotonic(), ZERO_LSN)


def standing(root: Path, **settings: Any) -> Standing:
    config = PipelineConfig(id="x", publication_name="p", pg_connection=PgConnection(), **settings)
    context = PipelineContext(
        config,
        MemoryStore(),
        Journal(root),
        MemoryDestination(),
        None,  # type: ignore[arg-type]  # nothing here needs Spark
    )
    return Standing(context, TABLE.id)


def test_terms_are_compared_with_those_of_the_copy_also_after_a_restart(tmp_path: Path) -> None:
    first = standing(tmp_path)
    before = look()
    first.keep(TERMS)
    first.see(published(CHANGED), before, TABLE)
    assert first.broken is None, "the look is older than the copy"
    first.see(published(CHANGED), look(), TABLE)
    assert first.broken == "its row filter was changed"
    assert first.wants_copy(published(CHANGED))
    first.keep(CHANGED)
    assert first.broken is None

    made = replace(CHANGED, partitions={8: PART, 9: replace(PART, name="public.t_2")})
    first.see(published(made), look(), TABLE)
    assert first.broken is None
    again = standing(tmp_path)
    again.see(published(CHANGED), look(), TABLE)
    assert again.broken == "partition public.t_2 was detached or dropped"

    forget_terms(Journal(tmp_path), TABLE.id)
    anew = standing(tmp_path)
    anew.see(published(TERMS), look(), TABLE)
    assert anew.broken is None, "there is nothing to compare with"


def test_whether_other_columns_are_followed_is_not_decided_here(tmp_path: Path) -> None:
    """A column list that is set anew makes another entry; `freeze` must still have its say."""
    wider = replace(TABLE, columns=(ID, ColumnSchema("v", 2, LONG, 20)))
    now = published(replace(TERMS, entries=frozenset({"table 2"})), wider)
    one = standing(tmp_path)
    one.keep(TERMS)
    one.see(now, look(), TABLE)
    assert one.broken is None
    assert not one.wants_copy(now)


def test_a_table_that_is_not_to_be_copied_goes_on(tmp_path: Path) -> None:
    one = standing(tmp_path, table_sync_copy={"mode": "none"})
    one.keep(TERMS)
    one.see(published(CHANGED), look(), TABLE)
    assert not one.wants_copy(published(CHANGED))
    assert one.broken is None
