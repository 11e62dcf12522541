"""A pipeline killed at durable steps, and at random, loses nothing and repeats nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.campaigns.crashes import Campaign
from tests.campaigns.hard_tables import TABLES
from tests.campaigns.kills import Kill, Life, Victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_260

DRIVER, MACHINE = Victim.DRIVER, Victim.MACHINE
RECEIVER, POSTGRES = Victim.RECEIVER, Victim.POSTGRES

# Each table costs a young JVM ten seconds a life. The soak has them all, and alters them.
PLAIN, TOASTED = (table for table in TABLES if table.name in ("plain", "toasted"))

# What costs time is a young JVM: twelve seconds of a processor until it works, and ten more
# for each table's first batch. So there are few lives, of which the first dies in the first
# copies and the others while streaming, and receivers die for the most part: at a failpoint
# one dies again and again until its driver does. Further failpoints and many more lives are
# in the soak.
LIVES = (
    Life(
        (
            Kill(RECEIVER, "journal_claimed"),
            Kill(RECEIVER, "slot_created"),
            Kill(RECEIVER, "journal_begun"),
            Kill(DRIVER, "copy_extracted", 2),
        )
    ),
    Life(
        (
            Kill(RECEIVER, "segment_written", 20),
            Kill(POSTGRES, "batch_committed"),
            Kill(DRIVER, "cursor_moved", 3),
        )
    ),
    Life(
        (
            Kill(POSTGRES, "snapshot_taken"),
            Kill(RECEIVER),
            Kill(POSTGRES),
            *[Kill(RECEIVER)] * 5,
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
