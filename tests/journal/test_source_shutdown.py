"""A source that is shut down while somebody receives: nobody keeps it from that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import BatchConfig, JournalConfig, PgConnection, PipelineConfig
from penstock.testing.postgres import EmbeddedPostgres, wait_for
from tests.journal.conftest import Running


@pytest.fixture(scope="module")
def stoppable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("stoppable"), listen_tcp=True) as server:
        with server.connect() as session:
            session.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            session.execute("CREATE PUBLICATION pub FOR TABLE t")
        yield server


def receiver_of(server: EmbeddedPostgres, root: Path, **journal: Any) -> Running:
    server.start()
    config = PipelineConfig(
        id="own",
        publication_name="pub",
        pg_connection=PgConnection(uri=server.dsn(tcp=True)),
        journal=JournalConfig(location=str(root / "journal"), **journal),
        batch=BatchConfig(max_bytes=50_000),
    )
    running = Running(config, server.connect())
    running.start()
    return running


def shut_down(running: Running, server: EmbeddedPostgres) -> None:
    """Fast, as systemd does it. Who is not done in time is killed, and does not say this."""
    said = server.log.read_text().count("database system is shut down")
    running.connection.close()
    server.stop(timeout=15)
    assert server.log.read_text().count("database system is shut down") == said + 1


def end(running: Running, server: EmbeddedPostgres) -> None:
    server.start()
    running.connection = server.connect()
    running.stop()
    running.execute(f"SELECT pg_drop_replication_slot('{running.config.slot_name}')")
    running.connection.close()


def test_wal_that_has_nothing_for_us_does_not_keep_it(
    stoppable: EmbeddedPostgres, tmp_path: Path
) -> None:
    running = receiver_of(stoppable, tmp_path)
    try:
        wait_for(lambda: running.events)
        before = running.journal.end
        running.execute("SELECT pg_logical_emit_message(false, 'x', 'x')")
        shut_down(running, stoppable)
        assert running.journal.end > before
    finally:
        end(running, stoppable)


def test_a_pause_does_not_keep_it(stoppable: EmbeddedPostgres, tmp_path: Path) -> None:
    running = receiver_of(stoppable, tmp_path, max_bytes=100_000)
    try:
        running.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
        insert = "INSERT INTO t SELECT g, repeat(md5(g::text), 60) FROM generate_series({}, {}) g"
        running.execute(insert.format(1, 16_000))
        wait_for(lambda: running.events[-1]["event"] == "paused")
        running.execute(insert.format(16_001, 32_000))  # more than the sockets' buffers hold
        shut_down(running, stoppable)
        wait_for(lambda: "ended the session" in str(running.events))
    finally:
        end(running, stoppable)
