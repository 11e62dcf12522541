from __future__ import annotations

import pytest

from penstock.config import PgConnection
from penstock.postgres.connection import (
    _end_of_record,
    connect,
    current_flush_lsn,
    current_wal_lsn,
    end_of_record,
)
from penstock.schema import Lsn
from penstock.testing.postgres import wait_for
from tests.conftest import Database

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("next_record", "end"),
    [
        (0x16EE018, 0x16EE000),  # behind a page's header
        (0x2000028, 0x2000000),  # behind a segment's header, which is longer
        (0x16EE028, 0x16EE028),  # a record that continues on the page may end here
        (0x2000018, 0x2000018),
        (0x16EE100, 0x16EE100),
    ],
)
def test_the_end_of_the_last_record_is_before_a_header(next_record: int, end: int) -> None:
    assert _end_of_record(Lsn(next_record), block=8192, segment=16 * MIB) == Lsn(end)


def test_a_record_that_fills_its_page_ends_where_the_flush_ends(database: Database) -> None:
    with connect(PgConnection(uri=database.dsn), "test") as session:
        for _ in range(200):
            left = 8192 - current_wal_lsn(session).value % 8192
            # 57 bytes around the text bring the record to the end of the page.
            length = left - 57 if 300 < left < 1500 else 600
            session.execute("SELECT pg_logical_emit_message(false, 'p', repeat('x', %s))", [length])
            told = current_wal_lsn(session)
            if told.value % 8192 == 24:
                break
        else:
            pytest.skip("no record happened to fill its page")
        end = end_of_record(session, told)
        assert end == Lsn(told.value - 24)
        wait_for(lambda: current_flush_lsn(session) >= end)
