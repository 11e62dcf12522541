"""The same rows by copy and by stream, and what Postgres says of them.

A receiver runs from the beginning, so that every row is in the journal; the copy reads
the very same rows from the table. Both connect as a role whose own settings would change
how nearly every type is printed.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.config import BatchConfig, JournalConfig, PgConnection, PipelineConfig
from penstock.journal.journal import Journal
from penstock.journal.manifest import Defect
from penstock.journal.receiver import Receiver
from penstock.postgres.catalog import published_tables
from penstock.postgres.connection import Session, connect
from penstock.postgres.copy import CtidRange, OnUnrepresentable, arrow_schema, copy_range
from penstock.schema import ZERO_LSN, TableSchema
from penstock.testing.postgres import wait_for

PUBLICATION = "both_ways"


def _odd_money() -> str:
    """A locale that writes money in another way, where the system has one."""
    found = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=True).stdout
    return next((name for name in found.split() if name.startswith(("de_", "fr_"))), "C.utf8")


_CONTRARY = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-10",
    "bytea_output": "escape",
    "lc_monetary": _odd_money(),
    "search_path": '"Other ""schema", public',
    "quote_all_identifiers": "on",
    "client_encoding": "LATIN1",
}


@dataclass(frozen=True)
class Streamed:
    """A table's inserted rows from the journal, in their order."""

    schema: TableSchema
    rows: pa.Table
    defects: tuple[Defect, ...]


@dataclass(frozen=True)
class Copied:
    schema: TableSchema
    rows: pa.Table
    nulled: int


class BothWays:
    """A database whose tables are read by copy and by stream."""

    def __init__(self, config: PipelineConfig, session: Session) -> None:
        self.config = config
        self.session = session
        """As another role, with our own settings: what it prints is what is right."""
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        session.execute("CREATE TABLE IF NOT EXISTS public.marker (id bigserial PRIMARY KEY)")

    def start(self) -> None:
        self._thread.start()
        wait_for(lambda: self._alive() and not self._journal().empty)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def copied(self, name: str, on_unrepresentable: OnUnrepresentable = "null") -> Copied:
        """What a copy makes of the table, in the order of `id`."""
        with connect(self.config.pg_connection, "copy") as session:
            schema = self._published(session, name)
            batches = list(
                copy_range(
                    session,
                    schema,
                    CtidRange(schema.name.quoted),
                    on_unrepresentable=on_unrepresentable,
                )
            )
        rows = pa.Table.from_batches([b.batch for b in batches], arrow_schema(schema))
        return Copied(schema, rows.sort_by("id"), sum(b.nulled for b in batches))

    def streamed(self, name: str) -> Streamed:
        """What the journal has of the table, in the order of `id`."""
        journal = self.catch_up()
        schema = next(s for s in journal.latest_schemas().values() if s.name.name == name)
        segments = [s for f in journal.pending(schema.id, ZERO_LSN) for s in f.segments]
        target = arrow_schema(schema)
        tables = [pq.read_table(Path(journal.file(s))).column("after") for s in segments]
        batches = [
            # Parquet has no names for what is inside a list, so these are taken as ours.
            pa.RecordBatch.from_struct_array(chunk).cast(target)
            for table in tables
            for chunk in table.chunks
        ]
        rows = pa.Table.from_batches(batches, target).sort_by("id")
        return Streamed(schema, rows, tuple(d for s in segments for d in s.defects))

    def catch_up(self) -> Journal:
        """The journal, when everything committed so far is in it: a marker comes last."""
        row = self.session.execute(
            "INSERT INTO public.marker DEFAULT VALUES RETURNING id, 'public.marker'::regclass::oid"
        ).fetchone()
        assert row is not None
        journal = self._journal()

        def there() -> bool:
            journal.refresh()
            schemas = journal.latest_schemas().values()
            return self._alive() and any(
                segment.key_max == row[0]
                for schema in schemas
                if schema.id.oid == row[1]
                for flush in journal.pending(schema.id, ZERO_LSN)
                for segment in flush.segments
            )

        wait_for(there)
        return journal

    def _published(self, session: Session, name: str) -> TableSchema:
        tables = published_tables(session, PUBLICATION, self.config.column_types)
        return next(table.schema for table in tables if table.schema.name.name == name)

    def _journal(self) -> Journal:
        journal = Journal(self.config.journal_path)
        journal.refresh()
        return journal

    def _alive(self) -> bool:
        if self._error is not None:
            raise self._error
        return True

    def _run(self) -> None:
        try:
            Receiver(self.config).run(self._stop)
        except BaseException as error:
            self._error = error


def assert_same(copied: Copied, streamed: Streamed) -> None:
    """Types and values of both, column by column; NaN equals itself, and -0 is not 0."""
    assert copied.schema.same_columns(streamed.schema)
    assert copied.rows.num_rows == streamed.rows.num_rows
    for name in copied.rows.column_names:
        one, other = copied.rows.column(name), streamed.rows.column(name)
        if not one.equals(other):
            assert list(map(repr, one.to_pylist())) == list(map(repr, other.to_pylist())), name


@contextmanager
def both_ways(
    source: PgConnection,
    directory: Path,
    column_types: Mapping[str, Mapping[str, str]] | None = None,
    publication: str = "FOR ALL TABLES",
) -> Iterator[BothWays]:
    """A receiver on this database, for as long as the block lasts."""
    with connect(source, "test") as session:
        name = f"contrary_{session.info.dbname}"
        session.execute(f"CREATE PUBLICATION {PUBLICATION} {publication}".encode())
        session.execute(f"CREATE ROLE {name} SUPERUSER LOGIN REPLICATION".encode())
        for setting, value in _CONTRARY.items():
            quoted = value if setting == "search_path" else f"'{value}'"
            session.execute(f"ALTER ROLE {name} SET {setting} = {quoted}".encode())
        config = PipelineConfig(
            id=session.info.dbname,
            publication_name=PUBLICATION,
            pg_connection=source.model_copy(update={"user": name}),
            journal=JournalConfig(location=str(directory / "journal")),
            batch=BatchConfig(max_fill_ms=50),
            column_types=column_types or {},
        )
        ways = BothWays(config, session)
        try:
            ways.start()
            yield ways
        finally:
            ways.stop()
            session.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())
