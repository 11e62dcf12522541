from __future__ import annotations

from penstock.config import PgConnection
from penstock.postgres.connection import connect
from penstock.postgres.snapshot import Writers
from penstock.schema import TableId, TableName, TableSchema
from tests.conftest import Database


def test_only_those_who_were_writing_are_waited_for(database: Database) -> None:
    with (
        database.connect() as owner,
        database.connect(autocommit=False) as first,
        database.connect(autocommit=False) as second,
        database.connect(autocommit=False) as reader,
        connect(PgConnection(uri=database.dsn), "test") as session,
    ):
        owner.execute("CREATE TABLE t (id bigint PRIMARY KEY); CREATE TABLE other (id bigint)")
        row = owner.execute("SELECT 't'::regclass::oid").fetchone()
        assert row is not None
        table = TableSchema(TableId(row[0]), TableName("public", "t"), ())
        reader.execute("SELECT * FROM t")
        second.execute("INSERT INTO other VALUES (1)")
        assert Writers(session, table).left() == 0

        first.execute("INSERT INTO t VALUES (1)")
        writers = Writers(session, table)
        second.execute("INSERT INTO t VALUES (2)")
        assert writers.left() == 1
        first.rollback()
        assert writers.left() == 0
        first.execute("INSERT INTO t VALUES (1)")
        assert writers.left() == 0, "another transaction of the same session is another"


def test_who_writes_to_a_partition_writes_to_its_root(database: Database) -> None:
    with (
        database.connect() as owner,
        database.connect(autocommit=False) as writer,
        connect(PgConnection(uri=database.dsn), "test") as session,
    ):
        owner.execute(
            "CREATE TABLE r (id bigint PRIMARY KEY) PARTITION BY RANGE (id);"
            "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)"
        )
        row = owner.execute("SELECT 'r'::regclass::oid").fetchone()
        assert row is not None
        writer.execute("INSERT INTO r1 VALUES (1)")
        root = TableSchema(TableId(row[0]), TableName("public", "r"), ())
        assert Writers(session, root).left() == 1
