"""What a test of a pipeline needs, for our tests and for those of extenders.

Everything here ships with the product, so that somebody who writes a
destination or a store proves it against the same real Postgres as we do.
"""

from penstock.testing.postgres import EmbeddedPostgres

__all__ = ["EmbeddedPostgres"]
