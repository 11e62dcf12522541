"""Penstock replicates Postgres tables through Spark into Delta."""

__version__ = "0.1.0"
