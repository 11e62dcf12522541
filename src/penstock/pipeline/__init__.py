"""The orchestration: a pipeline, its tables, and what they do."""

from penstock.pipeline.inspection import read_status
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.status import PipelineStatus, TableStatus

__all__ = ["Pipeline", "PipelineStatus", "TableStatus", "read_status"]
