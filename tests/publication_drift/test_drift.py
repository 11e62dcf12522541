"""How a table stands in the catalog, look after look."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import PgConnection, PipelineConfig
from penstock.destinations import MemoryDestination
from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.manifest import ChangeCounts, SegmentRef
from penstock.journal.writer import JournalWriter
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.source_watch import Membership
from penstock.postgres.catalog import PublishedTable, published_tables
from penstock.postgres.connection import connect
from penstock.postgres.ddl_triggers import install
from penstock.publication_drift.drift import Drift, forget_terms
from penstock.publication_drift.sent_partitions import SentPartition
from penstock.publication_drift.terms import Partition, Terms
from penstock.schema import (
    ZERO_LSN,
    ColumnSchema,
    DdlNote,
    Lsn,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)
from penstock.states import VisibleXids
from penstock.stores import MemoryStore

if TYPE_CHECKING:
    from tests.conftest import Database

LONG = ValueType(ValueKind.LONG)
ID = ColumnSchema("id", 1, LONG, 20, key_position=0)
TABLE = TableSchema(TableId(7), TableName("public", "t"), (ID,))
PART = Partition("public.t_1", ("5",), attached=False, file=8, touched_by=5)
TERMS = Terms(frozenset({"table 1"}), None, {8: PART})
CHANGED = replace(TERMS, row_filter="(id > 1)")


def published(terms: Terms, schema: TableSchema = TABLE) -> PublishedTable:
    return PublishedTable(schema, terms.row_filter, "p", 0, terms)


def look(source_at: int = 0) -> Membership:
    return Membership((), ZERO_LSN, time.monotonic(), Lsn(source_at))


def standing(root: Path, journal: Journal | None = None, **settings: Any) -> Drift:
    settings = {"pg_connection": PgConnection(), **settings}
    config = PipelineConfig(id="x", publication_name="p", **settings)
    context = PipelineContext(
        config,
        MemoryStore(),
        journal or Journal(root),
        MemoryDestination(),
        None,  # type: ignore[arg-type]  # nothing here needs Spark
    )
    return Drift(context, TABLE.id)


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

    made = replace(CHANGED, partitions={8: PART, 9: replace(PART, name="public.t_2", file=9)})
    first.see(published(made), look(), TABLE)
    assert first.broken is None
    again = standing(tmp_path)
    again.see(published(CHANGED), look(), TABLE)
    assert again.broken == "partition public.t_2 was detached or dropped"

    forget_terms(Journal(tmp_path), TABLE.id)
    anew = standing(tmp_path)
    anew.see(published(TERMS), look(), TABLE)
    assert anew.broken is None, "there is nothing to compare with"


def test_a_copy_is_of_the_timeline_it_was_made_on(tmp_path: Path) -> None:
    one = standing(tmp_path)
    one.keep(replace(TERMS, timeline=1))
    assert not one.left_behind
    (tmp_path / "timeline.json").write_text('{"timeline": 2}')
    assert one.left_behind
    made = replace(TERMS, partitions={8: PART, 9: replace(PART, file=9)}, timeline=2)
    one.see(published(made), look(), TABLE)
    assert standing(tmp_path).left_behind, "whatever has happened since"
    one.keep(made)
    assert not one.left_behind


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


def truncated(xid: int, version: Lsn) -> SegmentRef:
    counts = ChangeCounts(truncates=1)
    return SegmentRef("s", TABLE.id, version, 1, 1, counts, truncated_by=(xid,))


def test_another_file_of_a_partition_is_no_loss_where_the_stream_tells_why(tmp_path: Path) -> None:
    writer, journal = JournalWriter(tmp_path), Journal(tmp_path)
    writer.claim(JournalOwner("slot", "1", "db"))
    writer.append(Lsn(10), start=Lsn(10))
    journal.refresh()
    one = standing(tmp_path, journal)
    one.keep(TERMS)

    def refiled(by: int) -> PublishedTable:
        now = replace(PART, file=by * 100, touched_by=by)
        return published(replace(TERMS, partitions={8: now}))

    one.see(refiled(by=21), look(source_at=20), TABLE)
    assert one.broken is None, "the journal may yet tell"
    assert one.unsettled(None)
    one.see(refiled(by=31), look(source_at=30), TABLE)
    writer.append(Lsn(20), schemas=(TABLE,), segments=(truncated(21, TABLE.version),))
    journal.refresh()
    assert one.broken is None, "the whole table was truncated"
    assert not one.unsettled(None)
    one.see(refiled(by=31), look(source_at=30), TABLE)
    one.see(refiled(by=31), look(source_at=30), TABLE)
    note = replace(TABLE, version=Lsn(25), note=DdlNote(31))
    writer.append(Lsn(30), schemas=(note,))
    journal.refresh()
    assert one.broken is None, "the whole table was altered, and that was announced"
    one.see(refiled(by=31), look(source_at=30), TABLE)
    one.see(refiled(by=41), look(source_at=40), TABLE)
    journal.retire({TABLE.id: Lsn(30)})
    required = replace(TABLE, version=Lsn(35), note=DdlNote(41, reshaped=False))
    writer.append(Lsn(40), schemas=(required,))

    # After a restart, from what is on disk.
    journal = Journal(tmp_path)
    journal.refresh()
    assert journal.emptied_or_rewrote(TABLE.id, 21)
    one = standing(tmp_path, journal)
    one.see(refiled(by=31), look(source_at=40), TABLE)
    assert one.broken is None
    one.see(refiled(by=41), look(source_at=40), TABLE)
    assert one.broken == "partition public.t_1 was truncated by itself or rewritten"


class Looks:
    """One look at the only table of `pub` before, and one after what is done to it."""

    def __init__(self, database: Database, root: Path) -> None:
        connection = PgConnection(uri=database.dsn)
        self._drift = standing(root, Journal(root), pg_connection=connection)
        self.session = connect(connection, "test")
        self.execute = self.session.execute

    def now(self) -> PublishedTable:
        return published_tables(self.session, "pub")[0]

    def lost(self, *statements: str) -> bool:
        """Whether the look after the statements finds that rows may be lost."""
        before = self.now()
        self._drift.keep(before.terms)
        for statement in statements:
            self.execute(statement.encode())
        self._drift.see(self.now(), look(), before.schema)
        return self._drift.wants_copy(self.now())


@pytest.fixture
def looks(database: Database, tmp_path: Path) -> Iterator[Looks]:
    looks = Looks(database, tmp_path)
    with looks.session:
        yield looks


USING, UNLOGGED, LOGGED = (
    f"ALTER TABLE public.t {what}"
    for what in ("ALTER v TYPE int USING v + 1", "SET UNLOGGED", "SET LOGGED")
)


@pytest.mark.parametrize("large", [False, True], ids=["plain", "toast"])
def test_rewritten_rows_are_seen_where_nobody_announces_them(looks: Looks, large: bool) -> None:
    lost, more = looks.lost, ", big text" if large else ""
    looks.execute(f"CREATE TABLE public.t (id int PRIMARY KEY, v int{more})".encode())
    looks.execute("INSERT INTO public.t SELECT g, g FROM generate_series(1, 15) g")
    looks.execute("CREATE TABLE public.u (PRIMARY KEY (id)) INHERITS (public.t)")
    looks.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    assert not lost("UPDATE public.t SET v = 0", "GRANT SELECT ON public.t TO public")
    assert not lost("VACUUM FULL public.t")
    assert not lost("CLUSTER public.t USING t_pkey")
    assert not lost("ALTER TABLE public.t ALTER v SET STATISTICS 10, SET (fillfactor = 50)")
    assert lost(USING)
    assert lost(USING, "VACUUM FULL public.t")
    assert lost(UNLOGGED, "DELETE FROM public.t", LOGGED)
    assert lost("TRUNCATE public.t") is not large, "the journal, which would tell, is empty here"
    looks.execute("ALTER PUBLICATION pub SET (publish = 'insert,update,delete')")
    assert not lost("TRUNCATE public.t"), "which is not sent, and not wanted"


def test_rewritten_rows_are_the_announcement_s_matter_where_there_is_one(looks: Looks) -> None:
    looks.execute("CREATE TABLE public.t (id int PRIMARY KEY, v int)")
    looks.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    assert looks.now().terms.partitions
    before = looks.now().terms
    install(looks.session)
    assert not looks.now().terms.partitions
    assert before.broken_by(looks.now().terms) is None
    assert not looks.lost(USING)


def test_partitions_that_are_rewritten_with_their_rows_lose_nothing(looks: Looks) -> None:
    session, lost = looks.session, looks.lost
    session.execute(
        """CREATE TABLE public.t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
           CREATE TABLE public."t%1" PARTITION OF public.t FOR VALUES FROM (0) TO (10);
           CREATE TABLE public.t2 PARTITION OF public.t FOR VALUES FROM (10) TO (20);
           INSERT INTO public.t SELECT g, g FROM generate_series(1, 15) g;
           CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_via_partition_root)"""
    )
    assert not lost("UPDATE public.t SET v = 0")
    assert not lost('VACUUM FULL public."t%1", public.t2')
    assert not lost("CLUSTER public.t2 USING t2_pkey")
    assert not lost("REINDEX TABLE public.t2")
    assert lost("TRUNCATE public.t2")
    assert not lost("INSERT INTO public.t VALUES (11, 11), (12, 12)")
    assert lost('TRUNCATE public."t%1"', "INSERT INTO public.t VALUES (3, 3)")
    assert lost(
        """CREATE TABLE public.t3 PARTITION OF public.t FOR VALUES FROM (20) TO (30);
           INSERT INTO public.t VALUES (25, 25)""",
        "TRUNCATE public.t3",
    )
    assert not lost("CREATE TABLE public.t4 PARTITION OF public.t DEFAULT")
    assert lost("UPDATE public.t2 SET v = 1", "VACUUM FULL public.t2"), "nothing tells"
    session.execute("ALTER PUBLICATION pub SET (publish = 'insert, update, delete')")
    assert not lost("TRUNCATE public.t"), "nobody wants to hear of it"


def test_what_the_stream_tells_of_partitions_that_no_look_has_seen(tmp_path: Path) -> None:
    writer, journal = JournalWriter(tmp_path), Journal(tmp_path)
    writer.claim(JournalOwner("slot", "1", "db"))
    writer.append(Lsn(10), start=Lsn(10))
    one = standing(tmp_path, journal)
    passing, other = TableId(9), TableId(10)
    schemas = tuple(replace(TABLE, id=TableId(oid)) for oid in (8, 9, 10))
    copied = VisibleXids(100, 110, (105,))
    one.keep(replace(TERMS, seen=copied, since=copied))

    def broken(now: VisibleXids, *sent: SentPartition, journal: Journal = journal) -> str | None:
        writer.append(Lsn(writer.end.value + 10), schemas=schemas, partitions=sent)
        journal.refresh()
        one.see(published(replace(TERMS, seen=now, since=now)), look(), TABLE)
        return one.broken

    now = VisibleXids(105, 120, (105, 115))
    assert broken(now, SentPartition(TABLE.id, 8, 111)) is None, "one that there is"
    assert broken(now, SentPartition(TABLE.id, 9, 104)) is None, "the copy knows"
    assert broken(now, SentPartition(TABLE.id, 9, 115)) is None, "the look may not know yet"
    assert broken(now, SentPartition(other, 9, 111)) is None, "somebody else's"
    assert "came and went" in str(broken(now, SentPartition(TABLE.id, 9, 111)))
    one.keep(replace(TERMS, seen=now, since=now))
    later = VisibleXids(130, 130)
    assert broken(later) is None
    assert "another table" in str(broken(later, SentPartition(other, 8, 121)))

    # Ids of 32 bits wrap around, and the table is never copied again.
    one.keep(replace(TERMS, seen=later, since=later))
    for step in range(1, 18):
        at = 130 + step * 2**28
        one.see(published(replace(TERMS, seen=VisibleXids(at, at + 1))), look(), TABLE)
        assert one.broken is None
    xid = (at + 10) % 2**32
    assert "came and went" in str(
        broken(VisibleXids(at + 20, at + 20), SentPartition(TABLE.id, passing.oid, xid))
    )
    journal.retire({TABLE.id: journal.end})
    again = Journal(tmp_path)
    again.refresh()
    assert again.partitions_sent_under(TABLE.id)[9] == xid


def test_partitions_that_join_count_by_the_rows_that_they_bring(
    database: Database, tmp_path: Path
) -> None:
    connection = PgConnection(uri=database.dsn)
    one = standing(tmp_path, pg_connection=connection)
    with connect(connection, "test") as session:

        def gained(*statements: str) -> bool:
            """Whether a look after the statements finds that there may be rows unseen."""
            before = published_tables(session, "pub")[0]
            one._table_id = before.schema.id
            one.keep(before.terms)
            for statement in statements:
                session.execute(statement.encode())
            now = published_tables(session, "pub")[0]
            one.see(now, look(), before.schema)
            return one.wants_copy(now)

        def attached(name: str, area: str) -> str:
            return f"ALTER TABLE public.t ATTACH PARTITION public.{name} FOR VALUES IN ('{area}')"

        session.execute(
            """CREATE TABLE public.t (id int DEFAULT 1, k text DEFAULT 'a') PARTITION BY LIST (k);
               CREATE TABLE public.ta PARTITION OF public.t FOR VALUES IN ('a');
               CREATE TABLE public.empty (id int, k text);
               CREATE TABLE public.full (id int, k text);
               INSERT INTO public.full VALUES (1, 'c');
               CREATE TABLE public.deep (id int, k text) PARTITION BY LIST (k);
               CREATE TABLE public.deep_d PARTITION OF public.deep FOR VALUES IN ('d');
               CREATE PUBLICATION pub FOR TABLE public.t
               WITH (publish_via_partition_root, publish = 'insert, truncate')"""
        )
        assert not gained(attached("empty", "b"))
        assert gained(attached("full", "c"))
        assert gained("INSERT INTO public.deep VALUES (1, 'd')", attached("deep", "d"))
        # As partition managers do it, in one transaction.
        made = "CREATE TABLE public.{0} (LIKE public.t INCLUDING ALL);"
        row = "INSERT INTO public.{0} VALUES (1, '{0}');"
        one_go = "BEGIN;" + made + attached("{0}", "{0}") + ";{1} COMMIT"
        assert not gained(one_go.format("e", ""))
        assert gained(("BEGIN;" + made + row + attached("{0}", "{0}") + "; COMMIT").format("g"))
        every_column_has_a_default = (
            "CREATE TABLE public.h PARTITION OF public.t FOR VALUES IN ('h')"
        )
        assert not gained(every_column_has_a_default)
        assert gained(
            ("BEGIN;" + made + row + attached("{0}", "{0}") + "; COMMIT").format("i"),
            "ALTER TABLE public.t ALTER id SET NOT NULL, ALTER k SET NOT NULL",
        ), "whatever was altered since"
        assert gained(
            ("BEGIN;" + made + row + attached("{0}", "{0}") + "; COMMIT").format("j"),
            "DO 'BEGIN ALTER TABLE public.t ADD CHECK (id < 0); EXCEPTION WHEN OTHERS THEN END'",
        ), "also by somebody who failed"
        assert not gained("CREATE TABLE public.l PARTITION OF public.t FOR VALUES IN ('l')")


def test_types_whose_values_print_differently_break_the_terms(database: Database) -> None:
    with connect(PgConnection(uri=database.dsn), "test") as session:

        def terms() -> Terms:
            return published_tables(session, "pub")[0].terms

        def breaks(statement: str) -> str | None:
            before = Terms.from_json(terms().to_json())
            session.execute(statement.encode())
            return before.broken_by(terms())

        session.execute("SET search_path TO public")
        session.execute(
            """CREATE TYPE a AS ENUM ('a', 'same'); CREATE TYPE b AS ENUM ('b', 'same');
               CREATE TYPE c AS ENUM ('c'); CREATE TYPE d AS ENUM ('d');
               CREATE TYPE e AS ENUM ('e'); CREATE TYPE f AS ENUM ('f');
               CREATE TYPE pair AS (x int, y c); CREATE DOMAIN listed AS b[];
               CREATE TYPE span AS RANGE (subtype = d);
               CREATE TABLE other (e e);
               CREATE TABLE t (id int PRIMARY KEY, a a, b listed, c pair[], d span_multirange,
                               e other, n numeric, i int[]);
               CREATE PUBLICATION pub FOR TABLE t"""
        )
        for name in "abcde":
            renamed = breaks(f"ALTER TYPE {name} RENAME VALUE '{name}' TO '{name}2'")
            assert renamed == f"an enum's label {name} became {name}2"
        assert "attributes (1,2) became (1,2,3)" in str(breaks("ALTER TYPE pair ADD ATTRIBUTE z a"))
        assert "attributes (1,2,3) became (2,3)" in str(breaks("ALTER TYPE pair DROP ATTRIBUTE x"))
        assert "attributes (1) became (1,2)" in str(breaks("ALTER TABLE other ADD more int"))
        for harmless in (
            "ALTER TYPE f RENAME VALUE 'f' TO 'f2'",
            "ALTER TYPE a ADD VALUE 'first' BEFORE 'same'",
            "ALTER TYPE a RENAME TO a_renamed",
            "ALTER TYPE pair RENAME ATTRIBUTE y TO v",
            "ALTER DOMAIN listed SET NOT NULL",
            "ALTER TABLE t ADD f f",
        ):
            assert breaks(harmless) is None
        assert breaks("ALTER TYPE f RENAME VALUE 'f2' TO 'f'") is not None
