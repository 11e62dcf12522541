"""Replicates the publication shop_pub into Delta tables under ./lake."""

from penstock import PgConnection, Pipeline, PipelineConfig
from penstock.destinations import DeltaDestination
from penstock.stores import SqlStore

config = PipelineConfig(
    id="shop",
    publication_name="shop_pub",
    pg_connection=PgConnection(host="localhost", dbname="shop", user="penstock"),
)
store = SqlStore("sqlite:///penstock.db")
with Pipeline(config, store=store, destination=DeltaDestination("./lake")) as pipeline:
    pipeline.wait_until_ready(timeout=600)  # every table is copied and streams
    print(pipeline.status())
    pipeline.wait()  # until it is stopped
