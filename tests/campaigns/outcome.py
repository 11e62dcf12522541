"""What a pipeline has come to, beside what its publication shows."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.destinations import DeltaDestination
from penstock.postgres.catalog import published_tables
from penstock.publication_drift.drift import kept_terms
from penstock.testing.comparison import Comparison, compare
from tests.campaigns.publishing import published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def follows_publication(
    tables: AbstractSet[str], connection: psycopg.Connection[Any], publication: str, journal: Path
) -> bool:
    """Whether `tables` are those that are published, and each was copied on the terms of now."""
    shown = {str(each.schema.name): each for each in published_tables(connection, publication)}
    return tables == set(shown) and all(
        kept_terms(journal, each.schema.id) == each.terms for each in shown.values()
    )


def compare_published(
    connection: psycopg.Connection[Any],
    publication: str,
    spark: SparkSession,
    lake: DeltaDestination,
) -> tuple[list[Comparison], list[str]]:
    """Compare the columns and rows that are published with those that are in the lake; what
    was found, and what is wrong with it."""
    found, problems = [], []
    for each in published(connection, publication):
        mirror = spark.read.format("delta").load(lake.path(each.table))
        if set(mirror.columns) != set(each.columns):
            problems.append(f"{each.table} has {mirror.columns}, not {each.columns}")
        else:
            result = compare(connection, each.table, mirror, each.columns, each.row_filter)
            found.append(result)
            if not result.equal:
                problems.append(str(result))
    return found, problems
