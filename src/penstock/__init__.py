"""Penstock replicates Postgres tables through Spark into Delta."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config import PgConnection, PipelineConfig
    from penstock.errors import PenstockError
    from penstock.pipeline import Pipeline

__version__ = "0.1.0"

__all__ = ["PenstockError", "PgConnection", "Pipeline", "PipelineConfig", "__version__"]

# Loaded when first asked for: `import penstock` must not wait for Spark.
_HOMES = {
    "PenstockError": "penstock.errors",
    "PgConnection": "penstock.config",
    "Pipeline": "penstock.pipeline",
    "PipelineConfig": "penstock.config",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
