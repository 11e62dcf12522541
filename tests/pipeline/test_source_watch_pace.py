"""How often the publication is looked at."""

from __future__ import annotations

from penstock.pipeline.source_watch import look_pause


def test_looks_at_many_tables_take_a_small_share_of_a_core_at_the_most() -> None:
    assert look_pause(0.0) == look_pause(0.005) == 2.0
    for cost in (0.05, 0.4, 3.0):
        assert cost / look_pause(cost) <= 0.003 + 1e-9
