"""Sessions of our own, in which an application's settings change nothing that we read or write.

A new session begins with what the application's cluster is configured with, and some of it
would change rows without a word: corrupt files passed over, old dates moved to another calendar,
`timestamp` taken for one without a zone, `${env:HOME}` put into names and keys (and what is in the
environment into errors).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # A commit without rows has our mark all the same: a copy of an empty table, an empty batch.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
}


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside `spark` that reads and writes what is there."""
    session = spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session
