"""What a driver that was killed left behind goes when the next one starts."""

from __future__ import annotations

from tests.pipeline.conftest import TIMEOUT, Source


def test_files_of_a_copy_that_counts_already_are_removed_at_the_next_start(source: Source) -> None:
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        copies = pipeline.config.journal_path / "copies"
    # As a kill between `finished_copy` and the end of the copy does.
    (copies / "16384-abc").mkdir()
    (copies / "16384-abc" / "part.parquet").write_bytes(b"rows")
    with source.pipeline():
        assert not copies.exists()
    assert source.destination.called("copy", "public.a") == 1
