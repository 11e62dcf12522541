"""Where WAL records end.

`pg_current_wal_insert_lsn()` tells where the next record begins. At the very end
of a page that is behind the next page's header, 24 bytes further (40 where a
segment begins) than where the last record ended. What is flushed, sent and
acknowledged are ends of records, so on an idle server no position of the stream
would ever reach such a beginning; somebody who waits for it would wait until the
next thing happens.
"""

from __future__ import annotations

from penstock.postgres.connection import Session, translated
from penstock.schema import Lsn

_SHORT_HEADER, _LONG_HEADER = 24, 40

_SIZES = """
    SELECT current_setting('wal_block_size')::bigint, setting::bigint
    FROM pg_settings WHERE name = 'wal_segment_size'
"""


def end_of_record(session: Session, next_record: Lsn) -> Lsn:
    """Where the record before the one that would begin at `next_record` ended."""
    with translated("reading the server's WAL settings"):
        row = session.execute(_SIZES).fetchone()
    assert row is not None
    return _end_of_record(next_record, block=row[0], segment=row[1])


def _end_of_record(next_record: Lsn, *, block: int, segment: int) -> Lsn:
    # No record ends right behind a header: there would have to be some of it there.
    position = next_record.value
    if position % segment == _LONG_HEADER:
        return Lsn(position - _LONG_HEADER)
    if position % block == _SHORT_HEADER and position % segment != _SHORT_HEADER:
        return Lsn(position - _SHORT_HEADER)
    return next_record
