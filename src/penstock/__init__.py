"""Penstock replicates Postgres tables through Spark into Delta."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy import loader

if TYPE_CHECKING:
    from penstock.config import PgConnection, PipelineConfig
    from penstock.errors import PenstockError
    from penstock.pipeline import Pipeline

__version__ = "0.1.0"

__all__ = ["PenstockError", "PgConnection", "Pipeline", "PipelineConfig", "__version__"]

__getattr__ = loader(
    __name__,
    {
        "PenstockError": "penstock.errors",
        "PgConnection": "penstock.config",
        "Pipeline": "penstock.pipeline",
        "PipelineConfig": "penstock.config",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
