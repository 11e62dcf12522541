"""What a user sets: typed, validated, from code or from one YAML file.

The models mirror the YAML one to one. Unknown keys are errors that name the key
and the nearest known one; secrets print as `***`. A YAML file has the fields of
`PipelineConfig` at the top level, beside `store` and `destination`, which say
how the command line builds those two (`${NAME}` in a value is replaced from the
environment, so that a password need not be in the file; see `yaml_file`).
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from penstock.errors import ErrorKind, PenstockError
from penstock.yaml_file import read_yaml

MIB = 1024 * 1024
GIB = 1024 * MIB


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PgConnection(_Model):
    """How to reach Postgres: a URI, or libpq's own parameters.

    Names and meanings are libpq's. What is not given comes from libpq's usual
    places (environment, service file, password file).
    """

    uri: SecretStr | None = None
    host: str | None = None
    hostaddr: str | None = None
    port: int | None = None
    dbname: str | None = None
    user: str | None = None
    password: SecretStr | None = None
    passfile: str | None = None
    service: str | None = None
    sslmode: str | None = None
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    connect_timeout: int = 10
    keepalives: int | None = None
    keepalives_idle: int | None = None
    keepalives_interval: int | None = None
    keepalives_count: int | None = None
    options: str | None = None

    def parameters(self) -> dict[str, Any]:
        """libpq parameters, secrets revealed. The URI, if any, is under `uri`."""
        given = {k: v for k, v in self.model_dump().items() if v is not None}
        return {
            k: v.get_secret_value() if isinstance(v, SecretStr) else v for k, v in given.items()
        }


class BatchConfig(_Model):
    """How long and how much to gather before writing."""

    max_fill_ms: int = Field(1000, gt=0)
    max_bytes: int = Field(64 * MIB, gt=0)
    memory_budget_ratio: float = Field(0.2, gt=0, le=1)


class BackpressureConfig(_Model):
    """Shares of the memory budget at which intake pauses and resumes."""

    activate: float = Field(0.85, gt=0, le=1)
    resume: float = Field(0.75, gt=0, le=1)
    refresh_interval_ms: int = Field(100, gt=0)

    @model_validator(mode="after")
    def _resume_below_activate(self) -> Self:
        if self.resume >= self.activate:
            raise ValueError("resume must be smaller than activate")
        return self


class JournalConfig(_Model):
    """Where the journal is and how much it may hold."""

    location: str = "./penstock-journal"
    max_bytes: int = Field(16 * GIB, gt=0)
    max_table_bytes: int = Field(4 * GIB, gt=0)
    retention_hours: float = Field(0, ge=0)

    @model_validator(mode="after")
    def _table_below_whole(self) -> Self:
        if "max_table_bytes" not in self.model_fields_set:
            self.__dict__["max_table_bytes"] = min(self.max_table_bytes, self.max_bytes // 4)
        if self.max_table_bytes >= self.max_bytes:
            raise ValueError(
                f"max_table_bytes ({self.max_table_bytes}) must be smaller than max_bytes"
                f" ({self.max_bytes}), or one table that is set aside could fill the journal"
            )
        return self

    @field_validator("location")
    @classmethod
    def _local_directory(cls, location: str) -> str:
        if "://" in location and not location.startswith("file://"):
            raise ValueError("object-store journals are not supported yet; give a directory")
        odd = sorted(set("*?[]{}") & set(location))
        if odd:
            # Spark takes them for patterns, and would read files more than once.
            raise ValueError(f"a journal's path cannot have {' '.join(odd)} in it")
        return location.removeprefix("file://")


class TableSyncCopy(_Model):
    """Which tables are copied before they are streamed."""

    mode: Literal["all", "none", "only", "except"] = "all"
    tables: tuple[str, ...] = ()

    def includes(self, table: str) -> bool:
        match self.mode:
            case "all":
                return True
            case "none":
                return False
            case "only":
                return table in self.tables
            case "except":
                return table not in self.tables


class PipelineConfig(_Model):
    """One pipeline: a publication, a slot, a journal."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,54}$")]
    publication_name: str
    pg_connection: PgConnection
    batch: BatchConfig = BatchConfig()
    journal: JournalConfig = JournalConfig()
    table_error_retry_delay_ms: int = Field(1000, gt=0)
    table_error_retry_max_delay_ms: int = Field(60_000, gt=0)
    table_error_retry_max_attempts: int = Field(8, gt=0)
    max_table_sync_workers: int = Field(4, gt=0)
    max_copy_connections_per_table: int = Field(4, gt=0)
    max_apply_workers: int = Field(4, gt=0)
    memory_backpressure: BackpressureConfig = BackpressureConfig()
    table_sync_copy: TableSyncCopy = TableSyncCopy()
    schema_change_policy: Literal["follow", "additive", "freeze"] = "follow"
    invalidated_slot_behavior: Literal["error", "recreate"] = "error"
    failover: bool = False
    on_unrepresentable: Literal["error", "null"] = "error"
    column_types: dict[str, dict[str, str]] = Field(default_factory=dict)
    replication_lag_refresh_interval_ms: int = Field(1000, gt=0)

    @property
    def slot_name(self) -> str:
        return f"penstock_{self.id}"

    @property
    def journal_path(self) -> Path:
        return Path(self.journal.location).expanduser().resolve()


class StoreConfig(_Model):
    """The store of a YAML file: `memory`, or `sql` with a SQLAlchemy URL."""

    type: Literal["sql", "memory"] = "sql"
    url: SecretStr = SecretStr("sqlite:///penstock.db")


class DestinationConfig(_Model):
    """The destination of a YAML file."""

    type: Literal["delta", "memory"] = "delta"
    root: str = "./lake"
    mode: Literal["mirror", "history"] = "mirror"


class SparkConfig(_Model):
    """The Spark session of a YAML file; `config` is handed to Spark as it is."""

    master: str | None = None
    config: dict[str, str] = Field(default_factory=dict)


class FileConfig(PipelineConfig):
    """A whole YAML file: the pipeline and what surrounds it."""

    store: StoreConfig = StoreConfig()
    destination: DestinationConfig = DestinationConfig()
    spark: SparkConfig = SparkConfig()


def load_config(path: str | Path) -> FileConfig:
    """Read and validate a YAML file; every problem in it is named at once."""
    data = read_yaml(Path(path))
    try:
        return FileConfig.model_validate(data)
    except ValidationError as error:
        raise config_error(error, FileConfig, str(path)) from None


def config_error(error: ValidationError, model: type[BaseModel], where: str) -> PenstockError:
    """Pydantic's findings as one error that names each field."""
    problems = []
    for finding in error.errors(include_input=False, include_url=False):
        location = [str(part) for part in finding["loc"]]
        name = ".".join(location)
        if finding["type"] == "extra_forbidden":
            known = _fields_at(model, location[:-1])
            close = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
            suggestion = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            problems.append(f"unknown key {name}: {suggestion}")
        elif finding["type"] == "missing":
            problems.append(f"{name} is missing")
        else:
            problems.append(f"{name}: {finding['msg'].removeprefix('Value error, ')}")
    return PenstockError(
        ErrorKind.CONFIG,
        f"{where}: " + "; ".join(problems),
        hint="`penstock init --stdout` shows every setting with its default",
    )


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        if field is None or not isinstance(field.annotation, type):
            return []
        model = field.annotation
    return sorted(model.model_fields)
