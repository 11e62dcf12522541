"""A pipeline killed at every durable step, and at random, loses nothing and repeats nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.crashes import Campaign
from penstock.testing.kills import Kill, Life, Victim
from penstock.testing.workload import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_260

DRIVER, MACHINE = Victim.DRIVER, Victim.MACHINE
RECEIVER, POSTGRES = Victim.RECEIVER, Victim.POSTGRES

# Each table costs a young JVM ten seconds a life. The soak has them all, and alters them.
PLAIN, TOASTED = (table for table in TABLES if table.name in ("plain", "toasted"))

# The first lives die in the first copies, the later ones while streaming. A receiver
# that dies at a failpoint dies there again and again until its driver does. Further
# failpoints and many more lives are in the soak.
LIVES = (
    Life(
        (
            Kill(RECEIVER, "journal_claimed"),
            Kill(RECEIVER, "slot_created"),
            Kill(RECEIVER, "journal_begun"),
            Kill(DRIVER, "copy_extracted", 2),
        )
    ),
    Life((Kill(RECEIVER, "segment_written", 6), Kill(DRIVER, "state_changed", 5))),
    Life((Kill(RECEIVER, "acknowledged", 6), Kill(DRIVER, "batch_committed"))),
    Life(
        (
            Kill(RECEIVER, "manifest_created", 6),
            Kill(POSTGRES, "batch_committed"),
            Kill(DRIVER, "cursor_moved", 5),
        )
    ),
    Life(
        (
            Kill(POSTGRES, "snapshot_taken"),
            Kill(RECEIVER),
            Kill(POSTGRES),
            Kill(RECEIVER),
            Kill(RECEIVER),
            Kill(MACHINE),
        ),
        rejoin=PLAIN,
    ),
)


def test_every_table_equals_the_source_after_kills_of_everything(spark: SparkSession) -> None:
    with Campaign(SEED, tables=(PLAIN, TOASTED)) as campaign:
        for life in LIVES:
            campaign.live(life)
        campaign.verify(spark)
        assert campaign.kills.total() >= 16
        for kill in (kill for life in LIVES for kill in life.kills):
            assert campaign.kills[str(kill)] > 0, f"{kill} has not happened"
