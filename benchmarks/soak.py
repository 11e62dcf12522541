"""`make soak`: a hundred kills, compared every twenty or so, and SOAK.md.

python -m benchmarks.soak                        a hundred kills
python -m benchmarks.soak --kills 500 --seed 7   more, and the same plan again

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
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.report import commit, machine, versions
from penstock.spark.session import build_session
from penstock.testing.crashes import SPARK_SETTINGS, Campaign
from penstock.testing.kills import Kill, Life, Victim
from penstock.testing.workload import TABLES

PATH = Path(__file__).parent / "SOAK.md"

_KILLS = 100
_COMPARED_EVERY = 20

_FIRST = Life(
    (
        Kill(Victim.RECEIVER, "journal_claimed"),
        Kill(Victim.RECEIVER, "slot_created"),
        Kill(Victim.RECEIVER, "journal_begun"),
        Kill(Victim.DRIVER, "files_moved"),
    )
)
_RECEIVING = ("segment_written", "manifest_created", "acknowledged")
_COPYING = ("snapshot_taken", "copy_extracted", "copy_written", "copy_recorded", "state_changed")
_APPLYING = ("batch_committed", "cursor_moved", "schema_changed")


def random_life(chance: random.Random) -> Life:
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


def soak(kills: int, seed: int) -> tuple[Campaign, int, int]:
    """Live until so many kills are done: the campaign, its comparisons, the rows at the end."""
    chance = random.Random(seed)
    spark = build_session("penstock-soak", master="local[2]", config=SPARK_SETTINGS)
    compared = rows = 0
    with Campaign(seed, lambda line: print(line, flush=True), migrated=TABLES) as campaign:
        campaign.live(_FIRST)
        while campaign.kills.total() < kills:
            wanted = min(kills, campaign.kills.total() + _COMPARED_EVERY)
            while campaign.kills.total() < wanted:
                campaign.live(random_life(chance))
            rows = sum(each.source_rows for each in campaign.verify(spark))
            compared += 1
    spark.stop()
    return campaign, compared, rows


def write_results(
    campaign: Campaign, compared: int, rows: int, seconds: float, path: Path = PATH
) -> None:
    victims: Counter[str] = Counter()
    for kill, times in campaign.kills.items():
        victims[kill.partition(" ")[0]] += times
    by_victim = ", ".join(f"{victim} {times}" for victim, times in victims.most_common())
    outcomes, changes = campaign.transactions, campaign.changes
    undone = outcomes["rolled back"] + outcomes["undone"]
    kinds = {"i": "inserts", "u": "updates", "d": "deletes", "t": "truncates"}
    by_kind = ", ".join(f"{changes[op]:,} {name}" for op, name in kinds.items())
    lines = [
        "# Soak results",
        "",
        "Made by `make soak`: receiver, driver and Postgres are killed under a random workload, at",
        "failpoints around every durable step and at random moments. Every twenty kills or so the",
        "pipeline catches up and all tables are compared with the source, row by row.",
        "",
        f"- result: every table equal in each of {compared} comparisons; manifests contiguous, no",
        "  change in the journal twice, the slot never ahead of the journal, no process left over",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- seed: {campaign.seed}",
        f"- kills: {campaign.kills.total()} ({by_victim})",
        f"- transactions: {outcomes['committed']:,} committed, {undone:,} rolled back",
        f"- changes: {changes.total():,} ({by_kind}); tables altered {outcomes['altered']} times",
        f"- rows at the end: {rows:,} in {len(TABLES)} tables",
        f"- time: {seconds / 60:.1f} minutes",
        f"- commit: {commit()}",
        f"- machine: {machine()}",
        f"- versions: {versions()}",
        "",
        "| killed | times |",
        "| --- | --- |",
        *(f"| {kill} | {times} |" for kill, times in sorted(campaign.kills.items())),
        "",
    ]
    path.write_text("\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=_KILLS)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    campaign, compared, rows = soak(options.kills, seed)
    if options.kills >= _KILLS:
        write_results(campaign, compared, rows, time.monotonic() - began)
        print(f"written to {PATH}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
