"""The SQL that changes a Delta table, as text.

A source of changes is flat: `k0`, `k1`, ... are the key, `c0`, `c1`, ... the
columns of the table in their order, beside `deleted` and `missing`. So no name of
a user's column can meet one of ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.schema import ColumnSchema, TableSchema, ValueKind

_INTEGERS = frozenset({ValueKind.SHORT, ValueKind.INTEGER, ValueKind.LONG})


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def table_at(path: str) -> str:
    return f"delta.{quoted(path)}"


def text_literal(text: str) -> str:
    """A string in Spark SQL, whatever it holds and however escapes are configured."""
    return f"decode(X'{text.encode().hex()}', 'UTF-8')" if _risky(text) else f"'{text}'"


def _risky(text: str) -> bool:
    return not (text.isascii() and text.isprintable()) or any(c in text for c in "'\\$")


def can_list(key: Sequence[ColumnSchema]) -> bool:
    """Whether keys of this table can be written down as literals that prune files."""
    return all(c.type.kind in _INTEGERS or c.type.kind is ValueKind.STRING for c in key)


def key_list(key: Sequence[ColumnSchema], values: Sequence[Sequence[int | str | None]]) -> str:
    """A predicate that holds for the rows with these keys."""
    if len(key) == 1 and all(value is not None for (value,) in values):
        return f"{quoted(key[0].name)} IN ({', '.join(_literal(value) for (value,) in values)})"
    return " OR ".join(
        "(" + " AND ".join(f"{quoted(c.name)} <=> {_literal(v)}" for c, v in pairs) + ")"
        for pairs in (zip(key, row, strict=True) for row in values)
    )


def _literal(value: int | str | None) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else text_literal(value)


def merge(
    table: TableSchema,
    path: str,
    source: str,
    key_range: tuple[int, int] | None = None,
    may_miss: bool = False,
) -> str:
    """Apply a keyed source to the table in one commit."""
    key = table.key
    condition = [
        f"t.{quoted(c.name)} {'<=>' if c.nullable else '='} s.k{n}" for n, c in enumerate(key)
    ]
    if key_range is not None:
        low, high = key_range
        condition.append(f"t.{quoted(key[0].name)} BETWEEN {low} AND {high}")
    key_names = {column.name for column in key}
    sets, values = [], []
    for n, column in enumerate(table.columns):
        name, value = quoted(column.name), f"s.c{n}"
        if may_miss and column.name not in key_names:
            unsent = f"array_contains(s.missing, {text_literal(column.name)})"
            sets.append(f"t.{name} = CASE WHEN {unsent} THEN t.{name} ELSE {value} END")
            values.append(f"CASE WHEN {unsent} THEN {_lost(column)} ELSE {value} END")
        else:
            sets.append(f"t.{name} = {value}")
            values.append(value)
    names = ", ".join(quoted(column.name) for column in table.columns)
    return (
        f"MERGE INTO {table_at(path)} AS t USING {source} AS s ON {' AND '.join(condition)} "
        "WHEN MATCHED AND s.deleted THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(sets)} "
        f"WHEN NOT MATCHED AND NOT s.deleted THEN INSERT ({names}) VALUES ({', '.join(values)})"
    )


def _lost(column: ColumnSchema) -> str:
    """The value is neither in the batch nor in the mirror; NULL would be a lie."""
    return f"raise_error({text_literal(f'{LOST_VALUE} {column.name}')})"


LOST_VALUE = "penstock: the table lacks a row whose value Postgres did not resend:"


def merge_counts(table: TableSchema, path: str, source: str) -> str:
    """Apply a keyless source: rows with `gone` leave, all of them; the others come."""
    condition = ["s.gone"] + [
        f"t.{quoted(column.name)} <=> s.c{n}" for n, column in enumerate(table.columns)
    ]
    condition += [
        f"CAST(t.{quoted(column.name)} AS STRING) <=> CAST(s.c{n} AS STRING)"
        for n, column in enumerate(table.columns)
        if column.type.has_signed_zero
    ]
    names = ", ".join(quoted(column.name) for column in table.columns)
    values = ", ".join(f"s.c{n}" for n in range(len(table.columns)))
    return (
        f"MERGE INTO {table_at(path)} AS t USING {source} AS s ON {' AND '.join(condition)} "
        f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND NOT s.gone THEN INSERT ({names}) "
        f"VALUES ({values})"
    )
