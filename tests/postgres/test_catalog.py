"""What a publication sends, as the catalog tells it, on each server version."""

from __future__ import annotations

import psycopg
import pytest

from penstock.config import PgConnection
from penstock.errors import ErrorKind
from penstock.postgres.catalog import (
    PublishedTable,
    partition_leaves,
    publication,
    publication_exists,
    published_tables,
    table_schema,
    type_info,
    type_lookup,
)
from penstock.postgres.connection import Session, connect, server_version
from penstock.postgres.copy_targets import copy_targets, fingerprint, rewritten
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.schema import (
    STRING,
    Lsn,
    ReplicaIdentity,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)

PARTITIONED = """
    CREATE TABLE shop.orders (id int, region text, note text, PRIMARY KEY (id, region))
        PARTITION BY LIST (region);
    CREATE TABLE shop.orders_eu PARTITION OF shop.orders FOR VALUES IN ('eu')
        PARTITION BY RANGE (id);
    CREATE TABLE shop.orders_eu_1 PARTITION OF shop.orders_eu FOR VALUES FROM (0) TO (100);
    CREATE TABLE shop.orders_eu_2 PARTITION OF shop.orders_eu DEFAULT;
    -- attached later, with its columns in another order and a hole among them
    CREATE TABLE shop.orders_us (gone int, note text, region text NOT NULL, id int NOT NULL);
    ALTER TABLE shop.orders_us DROP COLUMN gone;
    ALTER TABLE shop.orders ATTACH PARTITION shop.orders_us FOR VALUES IN ('us');
"""


@pytest.fixture(autouse=True)
def _schema(session: Session) -> None:
    session.execute("CREATE SCHEMA shop")


def publish(session: Session, what: str, options: str = "") -> list[PublishedTable]:
    session.execute(f"CREATE PUBLICATION pub {what} {options}")
    return published_tables(session, "pub")


def names(tables: list[PublishedTable]) -> list[str]:
    return [str(table.schema.name) for table in tables]


def columns(table: TableSchema) -> list[str]:
    return [column.name for column in table.columns]


def key(table: TableSchema) -> list[str]:
    return [column.name for column in table.key]


def schema_of(session: Session, table: str) -> TableSchema:
    row = session.execute("SELECT %s::regclass::oid", [table]).fetchone()
    assert row is not None
    schema = table_schema(session, row[0])
    assert schema is not None
    return schema


# Membership


def test_one_table_of_many_can_be_asked_for(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY); CREATE TABLE shop.b (id int)")
    session.execute("CREATE TABLE shop.outside (id int PRIMARY KEY)")
    a, b = publish(session, "FOR TABLE shop.a, shop.b")
    assert published_tables(session, "pub", only=b.schema.id) == [b]
    assert published_tables(session, "pub", only=a.schema.id) == [a]
    assert published_tables(session, "pub", only=schema_of(session, "shop.outside").id) == []


def test_a_publication_that_is_not_there(session: Session) -> None:
    assert not publication_exists(session, "pub")
    assert publication(session, "pub") is None
    assert published_tables(session, "pub") == []


def test_operations_of_a_publication(session: Session) -> None:
    publish(session, "", "WITH (publish = 'insert, truncate', publish_via_partition_root)")
    found = publication(session, "pub")
    assert found is not None
    assert publication_exists(session, "pub")
    assert (found.inserts, found.updates, found.deletes, found.truncates) == (1, 0, 0, 1)
    assert found.via_partition_root
    assert published_tables(session, "pub") == []


def test_for_table(session: Session) -> None:
    session.execute("CREATE TABLE shop.b (id int PRIMARY KEY); CREATE TABLE shop.a (x int)")
    session.execute("CREATE TABLE shop.other (id int)")
    assert names(publish(session, "FOR TABLE shop.b, shop.a")) == ["shop.a", "shop.b"]


@pytest.mark.since(15)
def test_for_tables_in_schema(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int); CREATE TABLE public.b (id int)")
    session.execute("CREATE UNLOGGED TABLE shop.unlogged (id int)")
    session.execute("CREATE VIEW shop.v AS SELECT * FROM shop.a")
    assert names(publish(session, "FOR TABLES IN SCHEMA shop")) == ["shop.a"]


def test_for_all_tables(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int); CREATE TABLE public.b (id int)")
    assert names(publish(session, "FOR ALL TABLES")) == ["public.b", "shop.a"]


def test_names_with_every_kind_of_odd_character(session: Session) -> None:
    session.execute('CREATE SCHEMA "Od""d Schema"')
    session.execute('CREATE TABLE "Od""d Schema"."ta.b le" ("Zäh\'l" int PRIMARY KEY, "a b" text)')
    [table] = publish(session, 'FOR TABLE "Od""d Schema"."ta.b le"')
    assert table.schema.name == TableName('Od"d Schema', "ta.b le")
    assert columns(table.schema) == ["Zäh'l", "a b"]
    [target] = copy_targets(session, table.schema)
    session.execute(f"SELECT * FROM ONLY {target.name.quoted}")


# Columns


@pytest.mark.since(15)
def test_a_column_list_and_a_row_filter(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY, secret text, shown text)")
    [table] = publish(session, "FOR TABLE shop.a (shown, id) WHERE (id > 5 AND shown <> 'x''y')")
    assert columns(table.schema) == ["id", "shown"]
    assert [c.number for c in table.schema.columns] == [1, 3]
    session.execute("INSERT INTO shop.a VALUES (5, '', ''), (6, '', ''), (7, '', 'x''y')")
    kept = session.execute(f"SELECT id FROM shop.a WHERE {table.row_filter}").fetchall()
    assert kept == [(6,)]


def test_dropped_columns_leave_numbers_that_stay(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (gone int, id int PRIMARY KEY, n numeric(12,2) NOT NULL)")
    session.execute("ALTER TABLE shop.a DROP COLUMN gone, ADD COLUMN late text")
    [table] = publish(session, "FOR TABLE shop.a")
    described = [(c.name, c.number, c.type_name, c.nullable) for c in table.schema.columns]
    assert described == [
        ("id", 2, "integer", False),
        ("n", 3, "numeric(12,2)", False),
        ("late", 4, "text", True),
    ]
    assert table.schema.column("n").type == ValueType(ValueKind.DECIMAL, 12, 2)


@pytest.mark.since(18)
def test_a_column_is_not_null_when_all_rows_keep_to_it(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY, v int)")
    session.execute("ALTER TABLE shop.a ADD CONSTRAINT n NOT NULL v NOT VALID")
    assert [c.nullable for c in schema_of(session, "shop.a").columns] == [False, True]
    session.execute("ALTER TABLE shop.a VALIDATE CONSTRAINT n")
    assert [c.nullable for c in schema_of(session, "shop.a").columns] == [False, False]


def test_generated_columns_are_not_sent_unless_asked_for(session: Session) -> None:
    session.execute("""
        CREATE TABLE shop.a (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,
                             note text)
    """)
    [table] = publish(session, "FOR TABLE shop.a")
    assert columns(table.schema) == ["id", "note"]
    if server_version(session) >= 180000:
        session.execute("ALTER PUBLICATION pub SET (publish_generated_columns = stored)")
        session.execute("ALTER TABLE shop.a ADD thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL")
        [table] = published_tables(session, "pub")
        assert columns(table.schema) == ["id", "twice", "note"]


def test_version_14_knows_no_column_lists_and_sends_no_generated_columns(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execute(PARTITIONED)
    session.execute("""
        CREATE TABLE shop.a (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
        CREATE PUBLICATION pub FOR TABLE shop.a, shop.orders WITH (publish_via_partition_root)
    """)
    monkeypatch.setattr("penstock.postgres.catalog.server_version", lambda _: 140000)
    a, orders = published_tables(session, "pub")
    assert columns(a.schema) == ["id"]
    assert columns(orders.schema) == ["id", "region", "note"]
    assert a.row_filter is None


# Keys


def test_the_key_is_the_primary_key_in_its_own_order(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (x int, b int, c int, a int, PRIMARY KEY (a, b, x))")
    [table] = publish(session, "FOR TABLE shop.a")
    assert key(table.schema) == ["a", "b", "x"]
    assert [c.key_position for c in table.schema.columns] == [2, 1, None, 0]
    assert table.schema.identity is ReplicaIdentity.DEFAULT


def test_columns_that_an_index_only_includes_are_no_key(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int, note text, PRIMARY KEY (id) INCLUDE (note))")
    assert key(schema_of(session, "shop.a")) == ["id"]


def test_the_key_is_the_replica_identity_index(session: Session) -> None:
    session.execute("""
        CREATE TABLE shop.a (id int PRIMARY KEY, b int NOT NULL, c int NOT NULL);
        CREATE UNIQUE INDEX a_cb ON shop.a (c, b);
        ALTER TABLE shop.a REPLICA IDENTITY USING INDEX a_cb
    """)
    schema = schema_of(session, "shop.a")
    assert schema.identity is ReplicaIdentity.INDEX
    assert key(schema) == ["c", "b"]


def test_full_keeps_the_primary_key_where_there_is_one(session: Session) -> None:
    session.execute("""
        CREATE TABLE shop.with_key (id int PRIMARY KEY, b int);
        CREATE TABLE shop.without_key (id int, b int);
        ALTER TABLE shop.with_key REPLICA IDENTITY FULL;
        ALTER TABLE shop.without_key REPLICA IDENTITY FULL
    """)
    assert key(schema_of(session, "shop.with_key")) == ["id"]
    without = schema_of(session, "shop.without_key")
    assert key(without) == []
    assert without.mirrorable


def test_no_key_at_all(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int UNIQUE NOT NULL)")
    schema = schema_of(session, "shop.a")
    assert key(schema) == []
    assert not schema.mirrorable


def test_a_deferrable_primary_key_is_no_key(session: Session) -> None:
    """Two rows may share it inside a transaction, so it cannot tell them apart there."""
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY DEFERRABLE)")
    [table] = publish(session, "FOR TABLE shop.a")
    assert key(table.schema) == []


@pytest.mark.since(15)
def test_a_key_that_is_sent_in_part_is_no_key(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (a int, b int, c int, PRIMARY KEY (a, b))")
    [table] = publish(session, "FOR TABLE shop.a (a, c)", "WITH (publish = 'insert')")
    assert key(table.schema) == []


# Partitions and inheritance


def test_partitions_under_their_roots_name(session: Session) -> None:
    session.execute(PARTITIONED)
    session.execute("INSERT INTO shop.orders SELECT i, 'eu', '' FROM generate_series(1, 200) i")
    session.execute("INSERT INTO shop.orders VALUES (1, 'us', ''); ANALYZE shop.orders")
    [table] = publish(session, "FOR TABLE shop.orders", "WITH (publish_via_partition_root)")
    assert table.partitioned
    assert columns(table.schema) == ["id", "region", "note"]
    assert key(table.schema) == ["id", "region"]
    assert table.estimated_rows == 201
    targets = copy_targets(session, table.schema)
    assert [str(t.name) for t in targets] == [
        "shop.orders_eu_1",
        "shop.orders_eu_2",
        "shop.orders_us",
    ]
    rows = [session.execute(f"SELECT id FROM ONLY {t.name.quoted}").rowcount for t in targets]
    assert sum(rows) == 201


def test_what_a_copy_asks_locks_nothing(session: Session, source: PgConnection) -> None:
    """Else a TRUNCATE waits for the copy, and the copy's workers for the TRUNCATE: for ever."""
    session.execute(PARTITIONED)
    session.execute("CREATE TABLE shop.plain (id int PRIMARY KEY)")
    publish(session, "FOR ALL TABLES", "WITH (publish_via_partition_root)")
    with ExportedSnapshot(source) as snapshot:
        for table in published_tables(snapshot.connection, "pub"):
            copy_targets(snapshot.connection, table.schema)
            assert not rewritten(snapshot.connection, table.schema)
            fingerprint(snapshot.connection, table.schema)
        session.execute("SET lock_timeout = '2s'")
        session.execute("TRUNCATE shop.orders, shop.plain")
        assert all(
            rewritten(snapshot.connection, table.schema)
            for table in published_tables(snapshot.connection, "pub")
        )


def test_altered_columns_show_even_when_that_was_undone_and_so_do_other_names(
    session: Session,
) -> None:
    session.execute(PARTITIONED)
    [table] = publish(session, "FOR TABLE shop.orders", "WITH (publish_via_partition_root)")
    before = fingerprint(session, table.schema)
    session.execute("INSERT INTO shop.orders VALUES (5, 'eu', 'x')")
    assert fingerprint(session, table.schema) == before
    session.execute("ALTER TABLE shop.orders RENAME note TO n")
    session.execute("ALTER TABLE shop.orders RENAME n TO note")
    altered = fingerprint(session, table.schema)
    assert altered not in (before, None)
    # Rows are read by name, of partitions too.
    session.execute("ALTER TABLE shop.orders_us RENAME TO elsewhere")
    assert fingerprint(session, table.schema) not in (altered, None)
    session.execute("DROP TABLE shop.orders")
    assert fingerprint(session, table.schema) is None


def test_partitions_under_their_own_names(session: Session) -> None:
    session.execute(PARTITIONED)
    tables = publish(session, "FOR TABLE shop.orders")
    assert names(tables) == ["shop.orders_eu_1", "shop.orders_eu_2", "shop.orders_us"]
    us = tables[2]
    assert not us.partitioned
    assert columns(us.schema) == ["note", "region", "id"]
    assert [c.number for c in us.schema.columns] == [2, 3, 4]
    assert key(us.schema) == ["id", "region"]
    assert [str(t.name) for t in copy_targets(session, us.schema)] == ["shop.orders_us"]


@pytest.mark.parametrize("also", ["shop.orders_eu", "shop.orders_eu_1"])
def test_a_partition_published_beside_its_root_comes_once(session: Session, also: str) -> None:
    session.execute(PARTITIONED)
    tables = publish(session, f"FOR TABLE shop.orders, {also}", "WITH (publish_via_partition_root)")
    assert names(tables) == ["shop.orders"]


def test_a_middle_partition_published_under_its_name(session: Session) -> None:
    session.execute(PARTITIONED)
    [table] = publish(session, "FOR TABLE shop.orders_eu", "WITH (publish_via_partition_root)")
    assert names([table]) == ["shop.orders_eu"]
    targets = copy_targets(session, table.schema)
    assert [str(t.name) for t in targets] == ["shop.orders_eu_1", "shop.orders_eu_2"]


def test_the_leaves_of_a_table(session: Session) -> None:
    session.execute(PARTITIONED)
    leaves = partition_leaves(session, schema_of(session, "shop.orders"))
    assert [str(leaf.name) for leaf in leaves] == [
        "shop.orders_eu_1",
        "shop.orders_eu_2",
        "shop.orders_us",
    ]
    assert partition_leaves(session, leaves[0]) == []


def test_a_partition_that_is_being_detached_is_none_any_more(
    session: Session, source: PgConnection
) -> None:
    session.execute(PARTITIONED)
    [before] = publish(session, "FOR TABLE shop.orders", "WITH (publish_via_partition_root)")
    with connect(source, "reader", autocommit=False) as reader:
        reader.execute("SELECT FROM shop.orders")
        session.execute("SET lock_timeout TO '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):  # its second half waits for readers
            session.execute("ALTER TABLE shop.orders DETACH PARTITION shop.orders_us CONCURRENTLY")
    left = ["shop.orders_eu_1", "shop.orders_eu_2"]
    [pending] = published_tables(session, "pub")
    assert [str(t.name) for t in copy_targets(session, pending.schema)] == left
    assert [str(t.name) for t in partition_leaves(session, pending.schema)] == left
    broken = before.terms.broken_by(pending.terms)
    assert broken == "partition shop.orders_us was detached or dropped"
    session.execute("ALTER TABLE shop.orders DETACH PARTITION shop.orders_us FINALIZE")
    [after] = published_tables(session, "pub")
    assert after.terms == pending.terms


def test_unlogged_partitions_are_not_copied(session: Session) -> None:
    session.execute("""
        CREATE TABLE shop.a (id int) PARTITION BY LIST (id);
        CREATE TABLE shop.a1 PARTITION OF shop.a FOR VALUES IN (1);
        CREATE UNLOGGED TABLE shop.a2 PARTITION OF shop.a FOR VALUES IN (2)
    """)
    targets = copy_targets(session, schema_of(session, "shop.a"))
    assert [str(t.name) for t in targets] == ["shop.a1"]


def test_a_table_with_partitions_and_none_attached(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY) PARTITION BY LIST (id)")
    [table] = publish(session, "FOR TABLE shop.a", "WITH (publish_via_partition_root)")
    assert copy_targets(session, table.schema) == []
    assert table.estimated_rows == 0


def test_classic_inheritance_makes_two_tables(session: Session) -> None:
    session.execute("""
        CREATE TABLE shop.parent (id int PRIMARY KEY);
        CREATE TABLE shop.child (PRIMARY KEY (id)) INHERITS (shop.parent);
        INSERT INTO shop.parent VALUES (1); INSERT INTO shop.child VALUES (2)
    """)
    tables = publish(session, "FOR TABLE shop.parent")
    assert names(tables) == ["shop.child", "shop.parent"]
    for table in tables:
        assert [t.name for t in copy_targets(session, table.schema)] == [table.schema.name]


# Sizes


def test_the_size_is_the_real_one_and_not_the_analysed_one(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY, note text)")
    [empty] = publish(session, "FOR TABLE shop.a")
    assert empty.estimated_rows == -1
    [target] = copy_targets(session, empty.schema)
    assert (target.blocks, target.bytes) == (0, 0)
    session.execute("INSERT INTO shop.a SELECT i, repeat('x', 1000) FROM generate_series(1, 100) i")
    [target] = copy_targets(session, empty.schema)
    last = session.execute("SELECT max(ctid)::text FROM shop.a").fetchone()
    assert last is not None
    assert target.blocks == int(last[0].strip("()").split(",")[0]) + 1
    assert target.bytes == target.blocks * 8192


# Schemas and types


def test_a_schema_by_oid(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY, note text)")
    schema = schema_of(session, "shop.a")
    versioned = table_schema(session, schema.id.oid, Lsn(17))
    assert versioned is not None
    assert versioned.version == Lsn(17)
    assert versioned.same_shape(schema)
    session.execute("DROP TABLE shop.a")
    assert table_schema(session, schema.id.oid) is None
    assert table_schema(session, 1) is None


def test_domains_enums_arrays_and_composites_are_resolved(session: Session) -> None:
    session.execute("""
        CREATE TYPE shop.mood AS ENUM ('glad', 'sad');
        CREATE TYPE shop.pair AS (a int, b int);
        CREATE DOMAIN shop.price AS numeric(10, 3);
        CREATE DOMAIN shop.net_price AS shop.price CHECK (VALUE > 0);
        CREATE TABLE shop.a (id int PRIMARY KEY, mood shop.mood, moods shop.mood[], pair shop.pair,
                             price shop.net_price, prices shop.net_price[], dates date[])
    """)
    schema = schema_of(session, "shop.a")
    decimal = ValueType(ValueKind.DECIMAL, 10, 3)
    assert {c.name: c.type for c in schema.columns} == {
        "id": ValueType(ValueKind.INTEGER),
        "mood": STRING,
        "moods": ValueType(ValueKind.ARRAY, element=STRING),
        "pair": STRING,
        "price": decimal,
        "prices": ValueType(ValueKind.ARRAY, element=decimal),
        "dates": ValueType(ValueKind.ARRAY, element=ValueType(ValueKind.DATE)),
    }
    assert schema.column("mood").type_name == "shop.mood"


def test_a_type_that_does_not_exist(session: Session) -> None:
    assert type_info(session, 1) is None
    lookup = type_lookup(session)
    assert lookup(1) is None
    known = lookup(23)
    assert known is not None
    assert known.name == "int4"


def test_column_types_of_the_configuration(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY, day date, n numeric)")
    session.execute("CREATE PUBLICATION pub FOR TABLE shop.a")
    wanted = {"shop.a": {"day": "string", "n": "decimal(20,4)"}, "shop.b": {"x": "string"}}
    [table] = published_tables(session, "pub", wanted)
    assert table.schema.column("day").type == STRING
    assert table.schema.column("n").type == ValueType(ValueKind.DECIMAL, 20, 4)
    again = table_schema(session, table.schema.id.oid, column_types=wanted)
    assert again == table.schema


def test_an_impossible_column_type_is_told_of_its_table_and_column(session: Session) -> None:
    session.execute("CREATE TABLE shop.a (id int PRIMARY KEY, day date)")
    session.execute("CREATE TABLE shop.b (id int PRIMARY KEY)")
    session.execute("CREATE PUBLICATION pub FOR TABLE shop.a, shop.b")
    wrong, right = published_tables(session, "pub", {"shop.a": {"day": "double"}})
    assert right.refusal is None
    assert wrong.schema.column("day").type == ValueType(ValueKind.DATE)
    assert wrong.refusal is not None
    assert wrong.refusal.kind is ErrorKind.CONFIG
    assert wrong.refusal.table == TableName("shop", "a")
    assert "column day" in wrong.refusal.message


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        ("PRIMARY KEY (k)", True),
        ("PRIMARY KEY (id, k)", True),
        ("PRIMARY KEY (id)", False),
        ("PRIMARY KEY (id), CONSTRAINT k UNIQUE (k)", False),
    ],
)
def test_a_key_is_not_carried_as_a_double(session: Session, made: str, refused: bool) -> None:
    session.execute("CREATE DOMAIN shop.amount AS numeric NOT NULL")
    session.execute(
        f"CREATE TABLE shop.a (id int NOT NULL, k shop.amount NOT NULL, {made})".encode()
    )
    session.execute("CREATE PUBLICATION pub FOR TABLE shop.a")
    wanted = {"shop.a": {"k": "double"}}

    def is_refused() -> bool:
        [table] = published_tables(session, "pub", wanted)
        kept = table.schema.column("k").type == STRING
        assert kept == (table.refusal is not None)
        assert table.refusal is None or "column k" in table.refusal.message
        return kept

    assert is_refused() == refused
    if "UNIQUE" in made:
        session.execute("ALTER TABLE shop.a REPLICA IDENTITY USING INDEX k")
        assert is_refused()


def test_reading_the_catalog_waits_for_no_lock(session: Session, source: PgConnection) -> None:
    """The receiver looks tables up while it decodes; a long ALTER TABLE must not stop it."""
    session.execute("CREATE TABLE public.locked (id int PRIMARY KEY) PARTITION BY LIST (id)")
    session.execute("CREATE TABLE public.part PARTITION OF public.locked DEFAULT")
    oid = schema_of(session, "public.locked").id.oid
    with connect(source, "holder", autocommit=False) as holder:
        holder.execute("LOCK TABLE public.locked IN ACCESS EXCLUSIVE MODE")
        session.execute("SET lock_timeout TO '1s'")
        assert table_schema(session, oid) is not None
