"""What Delta needs from a Spark session: its jars, its SQL, its catalog."""

from __future__ import annotations

PACKAGE = "io.delta:delta-spark_4.1_2.13:4.4.0"

# What Delta asks for and Spark brings itself, in the versions it wants: 12 MB
# to fetch remain of 87.
_BROUGHT_BY_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "io.unitycatalog:*",
    "javax.annotation:*",
    "org.apache.hadoop:hadoop-client-runtime",  # and not hadoop-aws, which users add
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.scala-lang:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)

SPARK_SETTINGS = {
    "spark.jars.packages": PACKAGE,
    "spark.jars.excludes": ",".join(_BROUGHT_BY_SPARK),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Every commit under a fence replays the table's log, which is short: more than
    # one task for it is a shuffle for nothing.
    "spark.databricks.delta.snapshotPartitions": "1",
}
