"""A slot that is gone: refused, or everything anew."""

from __future__ import annotations

import pytest

from penstock.errors import ErrorKind, PenstockError
from tests.pipeline.conftest import TIMEOUT, Source


def replicate_and_lose_the_slot(source: Source) -> None:
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
    source.execute(f"SELECT pg_drop_replication_slot('{source.config().slot_name}')")
    source.execute("INSERT INTO a VALUES (1001, 'late')", "DELETE FROM a WHERE id = 1")


def test_a_lost_slot_is_an_error(source: Source) -> None:
    replicate_and_lose_the_slot(source)
    with pytest.raises(PenstockError, match="is gone") as caught:
        source.pipeline().start()
    assert caught.value.kind is ErrorKind.SOURCE_SLOT


def test_a_lost_slot_is_made_again_and_every_table_copied(source: Source) -> None:
    replicate_and_lose_the_slot(source)
    with source.pipeline(invalidated_slot_behavior="recreate") as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO a VALUES (1002, 'streamed')")
        source.catch_up(pipeline)
    assert source.mirrored("a") == source.rows("a")
