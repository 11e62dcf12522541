"""The nouns of a source: positions, tables, columns and schema versions.

A `TableSchema` is one version of one table, valid from `version` on (the
position at which it begins; zero for what the catalog said before streaming
began). Versions of the same table share `id`, which is the table's oid and so
survives renames; columns are matched across versions by `number`, Postgres's
attribute number, for the same reason.

A column's `type` is what its values become, not what Postgres calls it: the
resolution of domains, enums and oids has happened when a `ValueType` exists, so
the journal, Spark and destinations need no catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self


@dataclass(frozen=True, order=True, slots=True)
class Lsn:
    """A position in the write-ahead log, printed as Postgres prints it: `16/B374D848`."""

    value: int

    @classmethod
    def parse(cls, text: str) -> Self:
        high, low = text.split("/")
        return cls((int(high, 16) << 32) | int(low, 16))

    def __str__(self) -> str:
        return f"{self.value >> 32:X}/{self.value & 0xFFFFFFFF:X}"

    def __bool__(self) -> bool:
        return self.value != 0


ZERO_LSN = Lsn(0)


@dataclass(frozen=True, order=True, slots=True)
class TableId:
    """A table for as long as it lives: its oid."""

    oid: int

    def __str__(self) -> str:
        return str(self.oid)


@dataclass(frozen=True, order=True, slots=True)
class TableName:
    """A table as people name it. `quoted` is safe to put into SQL."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class ValueKind(StrEnum):
    """What a value becomes in Arrow and in Spark. See `postgres.types` for the mapping."""

    BOOLEAN = "boolean"
    SHORT = "short"
    INTEGER = "integer"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP_NTZ = "timestamp_ntz"
    TIMESTAMP = "timestamp"
    BINARY = "binary"
    STRING = "string"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class ValueType:
    """`precision` and `scale` belong to decimals; `element` and `delimiter` to arrays."""

    kind: ValueKind
    precision: int | None = None
    scale: int | None = None
    element: ValueType | None = None
    delimiter: str = ","

    @property
    def is_text(self) -> bool:
        """Whether it holds every text there is, or lists of them."""
        return self.kind is ValueKind.STRING or (
            self.kind is ValueKind.ARRAY and self.element is not None and self.element.is_text
        )

    @property
    def has_signed_zero(self) -> bool:
        """Whether it holds a zero and another one below it, or lists of them."""
        return self.kind in (ValueKind.FLOAT, ValueKind.DOUBLE) or (
            self.element is not None and self.element.has_signed_zero
        )

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": str(self.kind)}
        if self.kind is ValueKind.DECIMAL:
            out |= {"precision": self.precision, "scale": self.scale}
        if self.element is not None:
            out |= {"element": self.element.to_json(), "delimiter": self.delimiter}
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        element = data.get("element")
        return cls(
            ValueKind(data["kind"]),
            data.get("precision"),
            data.get("scale"),
            cls.from_json(element) if element else None,
            data.get("delimiter", ","),
        )


STRING = ValueType(ValueKind.STRING)


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One column. `key_position` is its 0-based place in the table's key, if it has one.

    `type_name` is what Postgres calls the type (`numeric(12,2)`), for people.
    """

    name: str
    number: int
    type: ValueType
    type_oid: int
    type_modifier: int = -1
    type_name: str = ""
    nullable: bool = True
    key_position: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "number": self.number,
            "type": self.type.to_json(),
            "type_oid": self.type_oid,
            "type_modifier": self.type_modifier,
            "type_name": self.type_name,
            "nullable": self.nullable,
            "key_position": self.key_position,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "type": ValueType.from_json(data["type"])})


class ReplicaIdentity(StrEnum):
    """What Postgres sends as the old row: `pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class DdlNote:
    """What the source said of the statement that began a version (see `postgres.ddl`).

    `xid` is its transaction. `rewritten` says that rows which were there may hold other
    values since, `recast` that values of columns with another type were cast to it, and
    nothing else; `fills` what rows show in columns that are new, by number and as text:
    a new column that is not among them is NULL there. `reshaped` says that the table does
    not look as it did: otherwise NOT NULL came or went, or nothing that a version shows.
    """

    xid: int
    rewritten: bool = False
    recast: bool = False
    fills: tuple[tuple[int, str], ...] = ()
    reshaped: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "xid": self.xid,
            "rewritten": self.rewritten,
            "recast": self.recast,
            "fills": list(self.fills),
            "reshaped": self.reshaped,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        fills = tuple((number, text) for number, text in data["fills"])
        reshaped = data.get("reshaped", True)
        return cls(data["xid"], data["rewritten"], data["recast"], fills, reshaped)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of one table; `columns` are the published ones, in their order.

    `note` is there when the source announced the version; without it the version was
    worked out from the catalog or from what the stream sends.
    """

    id: TableId
    name: TableName
    columns: tuple[ColumnSchema, ...]
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    version: Lsn = field(default=ZERO_LSN)
    note: DdlNote | None = None

    @property
    def key(self) -> tuple[ColumnSchema, ...]:
        """The columns that name a row, in key order; empty when there is no usable key.

        The primary key, or the replica-identity index's columns; a table with
        `REPLICA IDENTITY FULL` and no primary key has none here, and its rows
        are told apart by all their columns.
        """
        keyed = [column for column in self.columns if column.key_position is not None]
        return tuple(sorted(keyed, key=lambda column: column.key_position or 0))

    @property
    def mirrorable(self) -> bool:
        """Whether updates and deletes can be matched to rows at all."""
        return bool(self.key) or self.identity is ReplicaIdentity.FULL

    def column(self, name: str) -> ColumnSchema:
        return next(column for column in self.columns if column.name == name)

    def same_shape(self, other: TableSchema) -> bool:
        """Whether rows of both versions look alike (versions, names of types, NOT NULL aside)."""
        return (
            self.same_columns(other)
            and self.identity == other.identity
            and [c.key_position for c in self.columns] == [c.key_position for c in other.columns]
        )

    def same_types(self, other: TableSchema) -> bool:
        """Whether Postgres, too, has the columns of both under the same types."""
        return [(c.type_oid, c.type_modifier) for c in self.columns] == [
            (c.type_oid, c.type_modifier) for c in other.columns
        ]

    def same_columns(self, other: TableSchema) -> bool:
        """Whether both have the same name and columns, whatever the key is."""
        return self.name == other.name and [(c.name, c.number, c.type) for c in self.columns] == [
            (c.name, c.number, c.type) for c in other.columns
        ]

    def same_nullability(self, other: TableSchema) -> bool:
        """Whether the columns of both, which are of one shape, are NOT NULL in both or neither."""
        return [c.nullable for c in self.columns] == [c.nullable for c in other.columns]

    def nullable_as(self, other: TableSchema) -> TableSchema:
        """This version, with NOT NULL where `other`, which is of the same shape, has it."""
        pairs = zip(self.columns, other.columns, strict=True)
        columns = tuple(replace(column, nullable=as_in.nullable) for column, as_in in pairs)
        return replace(self, columns=columns)

    def to_json(self) -> dict[str, Any]:
        return {
            "oid": self.id.oid,
            "schema": self.name.schema,
            "name": self.name.name,
            "identity": str(self.identity),
            "version": str(self.version),
            "columns": [column.to_json() for column in self.columns],
            "note": self.note.to_json() if self.note else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        note = data.get("note")
        return cls(
            TableId(data["oid"]),
            TableName(data["schema"], data["name"]),
            tuple(ColumnSchema.from_json(column) for column in data["columns"]),
            ReplicaIdentity(data["identity"]),
            Lsn.parse(data["version"]),
            DdlNote.from_json(note) if note else None,
        )
