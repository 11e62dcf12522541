"""A copy that waits in Postgres, for a lock that somebody has, does not keep anybody waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from psycopg.pq import TransactionStatus

from penstock.pipeline import copier
from penstock.pipeline.copier import Copier
from penstock.testing.postgres import wait_for
from tests.pipeline.conftest import TIMEOUT, Source

PLAIN = (
    "CREATE TABLE t (id bigint PRIMARY KEY, v text)",
    "INSERT INTO t VALUES (1, 'one')",
    "CREATE PUBLICATION pub FOR TABLE t",
)
PARTITIONED = (
    "CREATE TABLE t (id bigint PRIMARY KEY, v text) PARTITION BY LIST (id)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1)",
    "INSERT INTO t VALUES (1, 'one')",
    "CREATE PUBLICATION pub FOR TABLE t WITH (publish_via_partition_root)",
)
# What is locked, and what the copy does next: outside its snapshot, inside, and in its tasks.
WAITS = [
    pytest.param(PARTITIONED, "t_1", (Copier, "_wait_for_writers"), id="looking at partitions"),
    pytest.param(PLAIN, "t", (copier, "copy_targets"), id="measuring"),
    pytest.param(PLAIN, "t", (copier, "plan_ranges"), id="reading"),
]


@contextmanager
def locked(
    source: Source, monkeypatch: pytest.MonkeyPatch, relation: str, step: tuple[Any, str]
) -> Iterator[None]:
    """From when a copy first comes to this step, somebody has the relation."""
    owner, name = step
    run = getattr(owner, name)
    with source.database.connect(autocommit=False) as other:

        def lock_and_run(*arguments: Any) -> Any:
            if other.info.transaction_status is TransactionStatus.IDLE:
                other.execute(f"LOCK TABLE {relation} IN ACCESS EXCLUSIVE MODE".encode())
            return run(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lock_and_run)
            yield
        other.rollback()


def copy_waits(source: Source) -> bool:
    query = """
        SELECT FROM pg_stat_activity WHERE datname = current_database()
        AND wait_event_type = 'Lock' AND application_name ~ '^penstock_.*(copy|snapshot)$'
    """
    return source.connection.execute(query).fetchone() is not None


@pytest.mark.parametrize(("statements", "relation", "step"), WAITS)
def test_a_pipeline_shuts_down_while_a_copy_waits_for_a_lock(
    empty_source: Source,
    monkeypatch: pytest.MonkeyPatch,
    statements: tuple[str, ...],
    relation: str,
    step: tuple[Any, str],
) -> None:
    source = empty_source
    source.execute(*statements)
    with locked(source, monkeypatch, relation, step):
        pipeline = source.pipeline()
        pipeline.start()
        wait_for(lambda: copy_waits(source))
        stopping = Thread(target=pipeline.shutdown)
        stopping.start()
        wait_for(lambda: not stopping.is_alive(), "shutdown waits for the lock", limit=30)
        wait_for(lambda: not copy_waits(source), "a session is left behind", limit=30)
        table = pipeline.status().table("public.t")
        assert (table.state.name, table.error) == ("data_sync", None)
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        assert source.mirrored("t") == source.rows("t")
