"""The servers and ways that the oracle tests of running pipelines are tried in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st


@dataclass(frozen=True)
class Variant:
    """`database` is the fixture that gives it, `announced` whether the source has the event
    triggers, `count` how many examples there are."""

    database: str
    announced: bool
    count: int
    restarts: bool = False


def variants(*, newest: int, older: int, long: int) -> pytest.MarkDecorator:
    """A few examples with the triggers on the newest server and without them on an older one;
    many of each kind, with restarts between, for `make soak`."""
    return pytest.mark.parametrize(
        "variant",
        [
            pytest.param(Variant("database", True, newest), id="18-announced"),
            pytest.param(Variant("older_database", False, older), id="16-guessed"),
            *(
                pytest.param(
                    Variant(database, announced, long, restarts=True),
                    id=f"long-{database}-{announced}",
                    marks=pytest.mark.campaign,
                )
                for database in ("database", "older_database")
                for announced in (True, False)
            ),
        ],
    )


def try_out(count: int, examples: st.SearchStrategy[Any], run: Callable[[Any], None]) -> None:
    """Run so many examples, the same ones each time.

    They are not made smaller: a pipeline that has failed one fails the next ones too.
    """

    @settings(
        max_examples=count,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(examples)
    def tried(example: Any) -> None:
        run(example)

    tried()
