"""What a user sets: typed, validated, from code or from one YAML file.

The models mirror the YAML one to one. Unknown keys are errors that name the key
and the nearest known one; secrets print as `***`. A YAML file has the fields of
`PipelineConfig` at the top level, and `store` and `destination`, from which
`pipeline.assembly` builds those two. `${NAME}` in a value is replaced from the
environment, so that a password need not be in the file (see `yaml_file`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from penstock.errors import ErrorKind, PenstockError
from penstock.yaml_file import read_yaml

MIB = 1024 * 1024
GIB = 1024 * MIB


class Secret(SecretStr):
    """Pydantic's, and equal to it where the text is; prints as `***`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStr) and other.get_secret_value() == self.get_secret_value()

    __hash__ = SecretStr.__hash__

    def _display(self) -> str:
        return "***"


def _secret(given: SecretStr) -> Secret:
    return Secret(given.get_secret_value())


def _with_schema(table: str) -> str:
    if "." not in table:
        raise ValueError(f"{table} has no schema: write schema.table")
    return table


def _slot_suffix(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]{1,54}", text):
        raise ValueError(
            "it becomes a part of the slot's name: 1 to 54 lower-case letters, digits and _"
        )
    return text


SecretText = Annotated[
    SecretStr, AfterValidator(_secret), PlainSerializer(str, return_type=str, when_used="json")
]
_Version = Annotated[str, Field(coerce_numbers_to_str=True)]
_QualifiedName = Annotated[str, AfterValidator(_with_schema)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise config_error(error, type(self), type(self).__name__) from None

    # Without this mark pydantic would call it for the models inside of a model as well, and
    # the first of them to fail would hide what else is wrong, and where it stands itself.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class PgConnection(_Model):
    """How to reach Postgres: a URI, or libpq's own parameters, which count for more.

    Names and meanings are libpq's. What is not given comes from libpq's usual
    places (environment, service file, password file). The last four are known
    because a connection string may have them: our sessions have their own.
    """

    uri: SecretText | None = None
    host: str | None = None
    hostaddr: str | None = None
    port: int | str | None = None
    dbname: str | None = None
    user: str | None = None
    password: SecretText | None = None
    passfile: str | None = None
    service: str | None = None
    target_session_attrs: str | None = None
    load_balance_hosts: str | None = None
    connect_timeout: int = 10
    keepalives: int | None = None
    keepalives_idle: int | None = None
    keepalives_interval: int | None = None
    keepalives_count: int | None = None
    tcp_user_timeout: int | None = None
    options: str | None = None
    sslmode: str | None = None
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    sslpassword: SecretText | None = None
    sslcertmode: str | None = None
    sslcrl: str | None = None
    sslcrldir: str | None = None
    sslnegotiation: str | None = None
    sslcompression: int | None = None
    sslsni: int | None = None
    sslkeylogfile: str | None = None
    ssl_min_protocol_version: str | None = None
    ssl_max_protocol_version: str | None = None
    min_protocol_version: _Version | None = None
    max_protocol_version: _Version | None = None
    channel_binding: str | None = None
    require_auth: str | None = None
    requirepeer: str | None = None
    gssencmode: str | None = None
    gsslib: str | None = None
    gssdelegation: int | None = None
    krbsrvname: str | None = None
    scram_client_key: SecretText | None = None
    scram_server_key: SecretText | None = None
    oauth_issuer: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret: SecretText | None = None
    oauth_scope: str | None = None
    application_name: str | None = None
    fallback_application_name: str | None = None
    client_encoding: str | None = None
    replication: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_is_a_uri(cls, given: Any) -> Any:
        return {"uri": given} if isinstance(given, str) else given

    @field_validator("port", mode="before")
    @classmethod
    def _one_or_one_for_each_host(cls, port: Any) -> Any:
        match port:
            case str() if port.isdecimal():
                return int(port)
            case str() if re.fullmatch("[0-9]*(,[0-9]*)+", port):
                return port
            case int() | None:
                return port
        raise ValueError("write a number, or with several hosts one for each: 5432,5433")

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, value) for name, value in super().__repr_args__() if value is not None]

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
    """Shares of the receiver's memory budget, and of the memory that a process and its control
    group may use, at which intake pauses and resumes."""

    activate: float = Field(0.85, gt=0, le=1)
    resume: float = Field(0.75, gt=0, le=1)
    refresh_interval_ms: int = Field(100, gt=0)

    @model_validator(mode="after")
    def _resume_below_activate(self) -> Self:
        if self.resume >= self.activate:
            raise ValueError("resume must be smaller than activate")
        return self


class JournalConfig(_Model):
    """Where the journal is and how much it may hold. `location` is absolute from the start: a
    later chdir must not part the pipeline from its receiver."""

    location: str = Field("./penstock-journal", validate_default=True)
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
                f" ({self.max_bytes}), or one table that is errored could fill the journal"
            )
        return self

    @field_validator("location")
    @classmethod
    def _local_directory(cls, location: str) -> str:
        if "://" in location and not location.startswith("file://"):
            raise ValueError("object-store journals are not supported yet; give a directory")
        try:
            location = str(Path(location.removeprefix("file://")).expanduser().resolve())
        except (OSError, RuntimeError) as error:
            raise ValueError(f"this leads to no directory: {error}") from None
        odd = sorted(set("*?[]{}") & set(location))
        if odd:
            # Spark takes them for patterns, and would read files more than once.
            raise ValueError(f"a journal's path cannot have {' '.join(odd)} in it")
        return location


class TableSyncCopy(_Model):
    """Which tables are copied before they are streamed."""

    mode: Literal["all", "none", "only", "except"] = "all"
    tables: tuple[_QualifiedName, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _text_is_a_mode(cls, given: Any) -> Any:
        return {"mode": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _tables_with_only_and_except(self) -> Self:
        if self.tables and "mode" not in self.model_fields_set:
            raise ValueError("tables need a mode: only or except")
        if self.tables and self.mode in ("all", "none"):
            raise ValueError(f"mode {self.mode} goes without tables; only and except have them")
        if not self.tables and self.mode in ("only", "except"):
            raise ValueError(f"mode {self.mode} needs tables: [schema.table, ...]")
        return self

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


class SparkConfig(_Model):
    """The Spark session that a pipeline starts; `config` is handed to Spark as it is."""

    master: str | None = None
    config: dict[str, str] = Field(default_factory=dict)


class PipelineConfig(_Model):
    """One pipeline: a publication, a slot, a journal."""

    id: Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(_slot_suffix)]
    publication_name: str
    pg_connection: PgConnection
    batch: BatchConfig = BatchConfig()
    journal: JournalConfig = Field(default_factory=JournalConfig)
    table_error_retry_delay_ms: int = Field(1000, gt=0)
    table_error_retry_max_delay_ms: int = Field(60_000, gt=0)
    table_error_retry_max_attempts: int = Field(8, gt=0)
    max_table_sync_workers: int = Field(4, gt=0)
    max_copy_connections_per_table: int = Field(4, gt=0)
    max_apply_workers: int = Field(4, gt=0)
    memory_backpressure: BackpressureConfig | None = BackpressureConfig()
    table_sync_copy: TableSyncCopy = TableSyncCopy()
    schema_change_policy: Literal["follow", "additive", "freeze"] = "follow"
    invalidated_slot_behavior: Literal["error", "recreate"] = "error"
    failover: bool = False
    on_unrepresentable: Literal["error", "null"] = "error"
    column_types: dict[_QualifiedName, dict[str, str]] = Field(default_factory=dict)
    replication_lag_refresh_interval_ms: int = Field(1000, gt=0)
    spark: SparkConfig = SparkConfig()

    @property
    def slot_name(self) -> str:
        return f"penstock_{self.id}"

    @property
    def journal_path(self) -> Path:
        return Path(self.journal.location)


class ComponentConfig(_Model):
    """A class that a YAML file names, and the settings for it, which only that class knows.

    `type` is a name or a path; see `registry`.
    """

    model_config = ConfigDict(extra="allow")

    type: str

    @field_validator("type", mode="before")
    @classmethod
    def _null_is_a_name(cls, given: Any) -> Any:
        return "null" if given is None else given  # YAML takes the name null for no value

    @property
    def settings(self) -> dict[str, Any]:
        """The keys next to `type`, as they were given."""
        return dict(self.model_extra or {})

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        # Any setting may be a secret, such as the password in the URL of a store.
        return [("type", self.type), *((name, Secret("")) for name in self.settings)]


class StoreConfig(ComponentConfig):
    """The store of a YAML file."""

    type: str = "sql"


class DestinationConfig(ComponentConfig):
    """The destination of a YAML file."""

    type: str = "delta"


class FileConfig(PipelineConfig):
    """A whole YAML file: the pipeline and what surrounds it."""

    store: StoreConfig = StoreConfig()
    destination: DestinationConfig = DestinationConfig()


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
        location = [str(part) for part in finding["loc"] if part != "[key]"]
        name = ".".join(location)
        if finding["type"] == "extra_forbidden":
            known = _fields_at(model, location[:-1])
            close = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
            suggestion = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            problems.append(f"unknown key {name}: {suggestion}")
        elif finding["type"] == "missing":
            problems.append(f"{name} is missing")
        else:
            problem = finding["msg"].removeprefix("Value error, ")
            problems.append(f"{name}: {problem}" if name else problem)
    return PenstockError(
        ErrorKind.CONFIG,
        f"{where}: " + "; ".join(problems),
        hint="`penstock init --stdout` shows every setting with its default",
    )


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        annotation = field.annotation if field else None
        nested = [
            each
            for each in (annotation, *get_args(annotation))  # a model, or `Model | None`
            if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        if not nested:
            return []
        model = nested[0]
    return sorted(model.model_fields)
