"""The orchestration: a pipeline, its tables, and what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy import loader
from penstock.pipeline.status import PipelineStatus, TableStatus

if TYPE_CHECKING:
    from penstock.pipeline.inspection import read_status
    from penstock.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "PipelineStatus", "TableStatus", "read_status"]

__getattr__ = loader(
    __name__,
    {"Pipeline": "penstock.pipeline.pipeline", "read_status": "penstock.pipeline.inspection"},
)
