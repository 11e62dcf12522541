"""`make soak`: a hundred kills, sixty more while tables are published anew, and SOAK.md.

python -m benchmarks.soak                        both
python -m benchmarks.soak --kills 500 --seed 7   more of the first, and the same plan again
python -m benchmarks.soak --part publications    one of the two, and nothing is written

The seed fixes the plan and what the writers try, not the moments at which things
meet; a failure prints it, with the place where everything was left.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import commit, machine, versions
from penstock.destinations.delta import session as delta
from penstock.spark.session import build_session
from penstock.testing.driver import SPARK_SETTINGS
from tests.campaigns.crashes import Campaign
from tests.campaigns.hard_tables import TABLES
from tests.campaigns.kills import Kill, Life, SlotLoss, Victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATH = Path(__file__).parent / "SOAK.md"

_KILLS = {"changes": 100, "publications": 60}
_COMPARED_EVERY = 20

_BEGUN = ("journal_claimed", "slot_created", "journal_begun")
_RECEIVING = ("segment_written", "manifest_created", "acknowledged")
_COPYING = ("snapshot_taken", "copy_extracted", "copy_written", "copy_recorded", "state_changed")
_APPLYING = ("batch_committed", "cursor_moved", "schema_changed")
_RECOVERING = ("states_reset", "directory_discarded", "journal_discarded")
_REPUBLISHING = ("terms_kept", "table_forgotten", *_COPYING)

# Small ones: what costs time is a young JVM, and each table costs it some.
_REPUBLISHED = tuple(table for table in TABLES if table.name in ("plain", "pairs", "parts"))
_MIGRATED = tuple(table for table in _REPUBLISHED if table.name != "parts")

_FIRST = Life(
    (
        *(Kill(Victim.RECEIVER, failpoint) for failpoint in _BEGUN),
        Kill(Victim.DRIVER, "files_moved"),
    )
)


def changing_life(chance: random.Random) -> Life:
    """A few kills of receiver and Postgres, and the driver's own at last."""
    kills = []
    receiving: Sequence[str | None] = (None, *_RECEIVING)
    if chance.random() < 0.7:
        kills.append(Kill(Victim.RECEIVER, chance.choice(receiving), chance.randint(2, 8)))
        receiving = (None,)  # one failpoint of its a life
    applying = chance.sample(_APPLYING, len(_APPLYING))
    if chance.random() < 0.6:
        failpoint = chance.choice([*receiving, applying.pop()])
        passage = 1 if failpoint == "schema_changed" else chance.randint(1, 3)
        kills.append(Kill(Victim.POSTGRES, failpoint, passage))
    chance.shuffle(kills)
    if chance.random() < 0.5:
        # One copy is made, so its failpoints are passed once and its states four times.
        failpoint = chance.choice(_COPYING)
        passage = chance.randint(1, 4) if failpoint == "state_changed" else 1
        last = Kill(Victim.DRIVER, failpoint, passage)
        return Life((*kills, last), rejoin=chance.choice(TABLES))
    if chance.random() < 0.6:
        failpoint = applying.pop()
        # Tables change their shape now and then, batches come all the time.
        passage = chance.randint(1, 2) if failpoint == "schema_changed" else chance.randint(4, 8)
        last = Kill(Victim.DRIVER, failpoint, passage)
    else:
        last = Kill(chance.choice([Victim.DRIVER, Victim.MACHINE]))
    return Life((*kills, last))


def republished_life(chance: random.Random) -> Life:
    """Tables leave and come back all the time; in every other life the slot is lost too."""
    lost = chance.choice([None, None, SlotLoss.DOWN, SlotLoss.RUNNING])
    kills: list[Kill] = []
    if lost is not None and chance.random() < 0.4:
        starting = lost is SlotLoss.DOWN  # the life before may have ended while it recovered
        last = Kill(Victim.DRIVER, chance.choice(_RECOVERING), starting=starting)
    else:
        if lost is not None:
            # Each is passed once by the new slot's receivers, one after the other.
            kills += [Kill(Victim.RECEIVER, each) for each in chance.sample(_BEGUN, 2)]
            kills.sort(key=lambda kill: _BEGUN.index(str(kill.failpoint)))
        kills += [Kill(Victim.RECEIVER)] * chance.randint(1, 3)
        if chance.random() < 0.4:
            kills.append(Kill(Victim.POSTGRES))
        if chance.random() < 0.7:
            failpoint = chance.choice(_REPUBLISHING)
            many = failpoint in ("state_changed", "terms_kept")
            last = Kill(Victim.DRIVER, failpoint, chance.randint(1, 4) if many else 1)
        else:
            last = Kill(chance.choice([Victim.DRIVER, Victim.MACHINE]))
    return Life((*kills, last), slot_loss=lost)


@dataclass(frozen=True, slots=True)
class Result:
    """What a campaign came to."""

    campaign: Campaign
    comparisons: int
    rows: int
    tables: int
    seconds: float


def soak(
    spark: SparkSession, campaign: Campaign, life: Callable[[random.Random], Life], kills: int
) -> Result:
    """Live until so many kills are done, comparing now and then."""
    began = time.monotonic()
    chance = random.Random(campaign.seed)
    compared = rows = tables = 0
    with campaign:
        campaign.live(_FIRST)
        while campaign.kills.total() < kills:
            wanted = min(kills, campaign.kills.total() + _COMPARED_EVERY)
            while campaign.kills.total() < wanted:
                campaign.live(life(chance))
            found = campaign.verify(spark)
            rows, tables = sum(each.source_rows for each in found), len(found)
            compared += 1
    return Result(campaign, compared, rows, tables, time.monotonic() - began)


def soak_changes(spark: SparkSession, kills: int, seed: int) -> Result:
    return soak(spark, Campaign(seed, _tell, migrated=TABLES), changing_life, kills)


def soak_publications(spark: SparkSession, kills: int, seed: int) -> Result:
    campaign = Campaign(
        seed,
        _tell,
        tables=_REPUBLISHED,
        migrated=_MIGRATED,
        republished=_REPUBLISHED,
        recreate=True,
    )
    return soak(spark, campaign, republished_life, kills)


def _tell(line: str) -> None:
    print(line, flush=True)


def write_results(changes: Result, publications: Result, path: Path = PATH) -> None:
    losses = publications.campaign.slot_losses
    lines = [
        "# Soak results",
        "",
        "Made by `make soak`: receiver, driver and Postgres are killed under a random workload, at",
        "failpoints around every durable step and at random moments. Every twenty kills or so the",
        "pipeline catches up and all tables are compared with the source, row by row.",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- commit: {commit()}",
        f"- machine: {machine()}",
        f"- versions: {versions()}",
        "",
        "## Changes of rows and of tables",
        "",
        *_figures(changes),
        "",
        "## Changes of the publication, and lost slots",
        "",
        "Tables leave the publication and come back, with other row filters and column lists;",
        "partitions are detached, changed and attached; the slot is dropped, while no pipeline",
        "runs and while one does, and made again (`invalidated_slot_behavior: recreate`). What is",
        "compared is what the publication shows at that time.",
        "",
        *_figures(publications),
        f"- slots lost: {', '.join(f'{losses[when]} ({when})' for when in SlotLoss)}",
        "",
        "## Kills",
        "",
        "| killed | changes | publications |",
        "| --- | --- | --- |",
        *_kill_rows(changes.campaign.kills, publications.campaign.kills),
        "",
    ]
    path.write_text("\n".join(lines))


def _figures(result: Result) -> list[str]:
    campaign = result.campaign
    victims: Counter[str] = Counter()
    for kill, times in campaign.kills.items():
        victims[kill.partition(" ")[0]] += times
    by_victim = ", ".join(f"{victim} {times}" for victim, times in victims.most_common())
    outcomes, changes = campaign.transactions, campaign.changes
    undone = outcomes["rolled back"] + outcomes["undone"]
    kinds = {"i": "inserts", "u": "updates", "d": "deletes", "t": "truncates"}
    by_kind = ", ".join(f"{changes[op]:,} {name}" for op, name in kinds.items())
    altered = f"tables altered {outcomes['altered']} times"
    if outcomes["republished"]:
        altered += f", published on other terms {outcomes['republished']} times"
    return [
        f"- result: every table equal in each of {result.comparisons} comparisons; manifests",
        "  contiguous, no change in the journal twice, the slot never ahead of the journal, no",
        "  process left over",
        f"- seed: {campaign.seed}",
        f"- kills: {campaign.kills.total()} ({by_victim})",
        f"- transactions: {outcomes['committed']:,} committed, {undone:,} rolled back",
        f"- changes: {changes.total():,} ({by_kind}); {altered}",
        f"- rows at the end: {result.rows:,} in {result.tables} tables",
        f"- time: {result.seconds / 60:.1f} minutes",
    ]


def _kill_rows(first: Counter[str], second: Counter[str]) -> list[str]:
    kills = sorted({*first, *second})
    return [f"| {kill} | {first[kill] or ''} | {second[kill] or ''} |" for kill in kills]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=None, help="of each part")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--part", choices=["all", *_KILLS], default="all")
    options = parser.parse_args()
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    spark = build_session(
        "penstock-soak", master="local[2]", config=delta.SPARK_SETTINGS | SPARK_SETTINGS
    )
    soaks = {"changes": soak_changes, "publications": soak_publications}
    results = {
        part: run(spark, options.kills or _KILLS[part], seed)
        for part, run in soaks.items()
        if options.part in ("all", part)
    }
    spark.stop()
    enough = (result.campaign.kills.total() >= _KILLS[part] for part, result in results.items())
    if options.part == "all" and all(enough):
        write_results(results["changes"], results["publications"])
        print(f"written to {PATH}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
