"""The difference between two versions of a table, and what a destination does about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.postgres.casts import keeps_values
from penstock.schema import ColumnSchema, DdlNote, ReplicaIdentity, TableSchema


class SchemaChangeAction(Enum):
    CONTINUE = "continue"
    RESYNC = "resync"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """From `old` to `new`; `new.version` is the position at which it begins.

    A column is the same while its number is, whatever it is called. One that was
    dropped and added again under its old name is another, and counts as both.
    """

    old: TableSchema
    new: TableSchema

    @property
    def note(self) -> DdlNote | None:
        """What the source said of it; None where only its outcome is known.

        Without it, rows that were there may hold anything in columns that are new or
        have another type: only Postgres can tell.
        """
        return self.new.note

    @property
    def added(self) -> tuple[ColumnSchema, ...]:
        return _only_in(self.new, self.old)

    @property
    def dropped(self) -> tuple[ColumnSchema, ...]:
        return _only_in(self.old, self.new)

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        return tuple((old.name, new.name) for old, new in self._kept if old.name != new.name)

    @property
    def retyped(self) -> tuple[tuple[ColumnSchema, ColumnSchema], ...]:
        return tuple((old, new) for old, new in self._kept if old.type != new.type)

    @property
    def nullability(self) -> tuple[ColumnSchema, ...]:
        """The columns, as they are now, that have become NOT NULL or are so no longer."""
        return tuple(new for old, new in self._kept if old.nullable != new.nullable)

    @property
    def only_nullability(self) -> bool:
        """Whether that is all: rows look as they did, and hold what they held."""
        return bool(self.nullability) and self.new.same_shape(self.old) and not self.rewrites

    @property
    def _kept(self) -> list[tuple[ColumnSchema, ColumnSchema]]:
        before = {_identity(column): column for column in self.old.columns}
        return [
            (before[_identity(column)], column)
            for column in self.new.columns
            if _identity(column) in before
        ]

    @property
    def rewrites(self) -> bool:
        """Whether the source said that rows which were there may hold other values since:
        in columns that are new, beside what it said of those, or in others. Or whether the
        key may have told other rows apart than it does."""
        note = self.note
        if note is None:
            return self._guesses_key
        return (
            note.rewritten
            # Rows that are cast are written anew, with the defaults of new columns in them,
            # and Postgres keeps no word of those.
            or (note.recast and bool(self.added))
            or not all(keeps_values(old, new, recast=note.recast) for old, new in self._kept)
        )

    @property
    def _guesses_key(self) -> bool:
        """Whether the key is the catalog's, for the stream does not tell it under FULL: it may be
        younger than changes that the stream has under it, of rows that it does not tell apart."""
        keys = [[_identity(column) for column in table.key] for table in (self.old, self.new)]
        full = self.new.identity is ReplicaIdentity.FULL
        return full and bool(self.new.key) and keys[0] != keys[1]

    @property
    def additive(self) -> bool:
        """Whether everything is still there, under its name."""
        gone = self.dropped or self.renamed or self.retyped
        return self.old.name == self.new.name and not gone

    @property
    def adds_only_nulls(self) -> bool:
        """Whether columns were added and nothing else changed, and the announcement says that
        they are NULL in the rows that were there.

        Without an announcement the answer is no: a default may have filled the columns.
        """
        if self.note is None or not self.added or not self.additive or self.rewrites:
            return False
        filled = {number for number, _ in self.note.fills}
        kept = [(_identity(c), c.key_position) for c in self.old.columns]
        added = {_identity(column) for column in self.added}
        still = [(_identity(c), c.key_position) for c in self.new.columns]
        return (
            self.old.identity == self.new.identity
            and [each for each in still if each[0] not in added] == kept
            and not any(c.number in filled or c.key_position is not None for c in self.added)
        )

    def __str__(self) -> str:
        parts = [f"dropped {column.name}" for column in self.dropped]
        parts += [f"added {column.name}" for column in self.added]
        parts += [f"renamed {old} to {new}" for old, new in self.renamed]
        parts += [f"{column.name} has another type" for _, column in self.retyped]
        if self.old.name != self.new.name:
            parts.append(f"renamed to {self.new.name}")
        if not parts and self.note and self.rewrites:
            parts.append("its rows were rewritten")
        if not parts and not self.only_nullability:
            parts.append("key, replica identity or order of columns")
        parts += [f"{c.name} {'may be' if c.nullable else 'is not'} NULL" for c in self.nullability]
        return ", ".join(parts)


def _identity(column: ColumnSchema) -> tuple[int, str]:
    """Its number; where that is unknown (negative), it is the same only under its name."""
    return (column.number, "") if column.number > 0 else (column.number, column.name)


def _only_in(one: TableSchema, other: TableSchema) -> tuple[ColumnSchema, ...]:
    known = set(map(_identity, other.columns))
    return tuple(column for column in one.columns if _identity(column) not in known)
