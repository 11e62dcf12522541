"""Rows and events, one at a time, over Arrow record batches.

Values are Python's own: `Decimal`, `date`, `datetime` (UTC where the column has a time zone, naive
otherwise), `bytes`, `list` for arrays, `str` for everything that Postgres has only as text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any

from penstock.errors import UnsentValue
from penstock.events import (
    Begin,
    Commit,
    Delete,
    Event,
    Insert,
    OldRow,
    Relation,
    Row,
    Truncate,
    Update,
)
from penstock.schema import Lsn, ReplicaIdentity, TableSchema, ValueKind, ValueType

if TYPE_CHECKING:
    import pyarrow as pa


def iterate_rows(table: TableSchema, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows of a copied table, as dictionaries."""
    restore = _restorer(table)
    for batch in batches:
        for row in batch.to_pylist():
            yield restore(row)


def iterate_events(
    table: TableSchema, batches: Iterable[pa.RecordBatch], *, begins_version: bool
) -> Iterator[Event]:
    """The changes in order, with `Begin` and `Commit` around each transaction.

    The journal keeps no position of a single change, so `start_lsn` is that of the
    transaction's commit.
    """
    if begins_version:
        yield Relation(table.version, table.version, 0, table)
    restore = _restorer(table)
    last: Any = None
    for batch in batches:
        for change in batch.to_pylist():
            if last is None or last["commit_lsn"] != change["commit_lsn"]:
                if last is not None:
                    yield Commit(*_transaction(last))
                yield Begin(*_transaction(change))
            yield _event(table, change, restore)
            last = change
    if last is not None:
        yield Commit(*_transaction(last))


def _event(table: TableSchema, change: Any, restore: Callable[[Any], Row]) -> Event:
    place = _place(change)
    old = None if change["before"] is None else restore(change["before"])
    key = [column.name for column in table.key]
    full = table.identity is ReplicaIdentity.FULL and not _is_bare_key(old, key)
    if old is not None and not full:
        old = {name: old[name] for name in key}
    unsent = change["unchanged"] or ()
    match change["op"]:
        case "i":
            if unsent:
                raise UnsentValue(unsent, table=table.name, position=place[1])
            return Insert(*place, restore(change["after"]))
        case "u":
            new = dict(restore(change["after"]))
            known = {name: old[name] for name in unsent if old and name in key}
            missing = tuple(name for name in unsent if name not in known)
            for name in missing:
                del new[name]
            kind = OldRow.ABSENT if old is None else OldRow.FULL if full else OldRow.KEY
            return Update(*place, new | known, old, kind, missing)
        case "d":
            return Delete(*place, old or {}, OldRow.FULL if full else OldRow.KEY)
        case "t":
            return Truncate(*place)
        case op:
            raise ValueError(f"unknown change {op!r} at {place[1]}")


def _is_bare_key(old: Mapping[str, Any] | None, key: Collection[str]) -> bool:
    """Whether an old row has its key alone: a partition's, whose own identity is that."""
    others = (value for name, value in (old or {}).items() if name not in key)
    return bool(key) and all(value is None for value in others)


def _place(change: Any) -> tuple[Lsn, Lsn, int]:
    lsn = Lsn(change["commit_lsn"])
    return lsn, lsn, change["tx_ordinal"]


def _transaction(change: Any) -> tuple[Any, ...]:
    return (*_place(change), change["xid"], change["commit_ts"].astimezone(UTC))


def _restorer(table: TableSchema) -> Callable[[Any], Row]:
    """Turns what Arrow makes of a row into Python's own values."""
    instants = [(column.name, column.type) for column in table.columns if _is_instant(column.type)]

    def restore(row: Any) -> Row:
        for name, kind in instants:
            row[name] = _in_utc(kind, row[name])
        return row or {}

    return restore


def _is_instant(type: ValueType) -> bool:  # noqa: A002
    if type.element is not None:
        return _is_instant(type.element)
    return type.kind is ValueKind.TIMESTAMP


def _in_utc(type: ValueType, value: Any) -> Any:  # noqa: A002
    if value is None:
        return None
    if type.element is not None:
        return [_in_utc(type.element, item) for item in value]
    return value.astimezone(UTC)
