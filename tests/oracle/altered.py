"""A table whose columns are altered while several sessions write to it.

Names of columns come from a small pool, so that one goes and another comes under its name.
Rows are found by where they are, whatever the columns are called by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from penstock.schema import TableName
from tests.oracle.sessions import Chance, Schedule, Session

SHAPES = ("primary", "primary full", "index", "full", "partitioned")
NAMES = ("a", "b", "c", "d", "e f", "Ä")
KEYS = 12

# By the names that Postgres has for them: texts of values, and what they are in a column
# of the destination.
TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "smallint": ("smallint", ("0", "7", "-3", "12")),
    "integer": ("int", ("0", "1", "70000", "-5")),
    "bigint": ("bigint", ("0", "2", "5000000000")),
    "real": ("float", ("0.5", "-0.1", "3")),
    "double precision": ("double", ("0.1", "2.5", "1e100")),
    "numeric(6,2)": ("decimal(6,2)", ("0", "12.34", "-9999.99")),
    "numeric(10,4)": ("decimal(10,4)", ("1.0001", "-12.5")),
    "numeric": ("string", ("1.50", "100000000000000000000", "7")),
    "text": ("string", ("", "5", "it's ✓", "2024-02-29", "a  ")),
    "character varying(6)": ("string", ("", "8", "abc   ", "ö")),
    "character(4)": ("string", ("", "9", "ab")),
    "boolean": ("boolean", ("true", "false")),
    "date": ("date", ("2024-02-29", "1999-12-31")),
    "timestamp without time zone": ("timestamp_ntz", ("2024-02-29 12:34:56.789", "1999-12-31")),
    "timestamp(0) without time zone": ("timestamp_ntz", ("2024-02-29 12:34:56",)),
    "timestamp with time zone": ("timestamp", ("2024-02-29 12:34:56.789+03", "1999-12-31")),
    "interval": ("string", ("1 day", "-01:02:03")),
    "inet": ("string", ("10.0.0.1", "10.0.0.0/8", "::1")),
    "cidr": ("string", ("10.0.0.0/8", "10.0.0.1/32")),
    "bytea": ("binary", ("\\x00ff", "")),
    "uuid": ("string", ("00000000-0000-0000-0000-00000000000a",)),
    "jsonb": ("string", ('{"a": 1}', "[1, 2]")),
    "integer[]": ("array<int>", ("{}", "{1,NULL,3}")),
    "text[]": ("array<string>", ('{a,"b,c",NULL}', "{}")),
}
# Casts that a careful change of schema has, and those that somebody does once.
RETYPES = {
    "smallint": ("integer", "bigint", "double precision", "real", "numeric(10,4)", "text"),
    "integer": ("bigint", "double precision", "smallint", "numeric", "text", "real"),
    "bigint": ("integer", "text", "double precision"),
    "real": ("double precision", "text", "numeric"),
    "double precision": ("real", "text"),
    "numeric(6,2)": ("numeric(10,4)", "numeric", "integer", "text"),
    "numeric(10,4)": ("numeric(6,2)", "double precision"),
    "numeric": ("numeric(10,4)", "text"),
    "text": ("character varying(6)", "character(4)"),
    "character varying(6)": ("text", "character(4)"),
    "character(4)": ("text", "character varying(6)"),
    "date": ("timestamp without time zone", "timestamp with time zone", "text"),
    "timestamp without time zone": (
        "timestamp(0) without time zone",
        "timestamp with time zone",
        "date",
    ),
    "timestamp(0) without time zone": ("timestamp without time zone",),
    "timestamp with time zone": ("timestamp without time zone", "date"),
    "inet": ("cidr", "text"),
    "cidr": ("inet", "text"),
    "integer[]": ("text[]",),
}
EASY = ("smallint", "integer", "real", "numeric(6,2)", "date", "text")
VOLATILE = {
    "timestamp with time zone": "clock_timestamp()",
    "double precision": "random()",
    "uuid": "gen_random_uuid()",
    "integer": "(random() * 100)::int",
}

WRITING = {"insert": 6, "update": 6, "move": 2, "delete": 2, "truncate": 1}
ENDING = {"begin": 4, "commit": 5, "rollback": 1, "savepoint": 2, "rollback to": 2, "release": 1}
VERBS = {
    **WRITING,
    **ENDING,
    "alter": 7,
    "script": 1,
    "function": 1,
    "rekey": 1,
    "vacuum": 1,
    "persist": 1,
}
PAUSES = {"receive": 2, "settle": 1}


def quoted(name: str) -> str:
    return f'"{name}"'


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    generated: bool
    key: bool

    @property
    def quoted(self) -> str:
        return quoted(self.name)

    def value(self, chance: Chance) -> str:
        if self.key and self.type in ("smallint", "integer", "bigint"):
            return str(chance.randrange(KEYS))
        return literal(self.type, chance) if self.key or chance.random() < 0.85 else "NULL"


def any_type(chance: Chance) -> str:
    return chance.choice(EASY if chance.random() < 0.4 else list(TYPES))


def literal(type_name: str, chance: Chance) -> str:
    if type_name not in TYPES:
        return "DEFAULT"
    text = chance.choice(TYPES[type_name][1]).replace("'", "''")
    return f"'{text}'::{type_name}"


@dataclass(frozen=True)
class AlteredTable:
    """`shape` is how its rows are told apart, one of `SHAPES`."""

    name: TableName
    shape: str
    types: tuple[str, ...]

    def create(self) -> str:
        table = self.name.quoted
        lines = ["id integer NOT NULL", "big text"]
        lines += [f"{quoted(n)} {t}" for n, t in zip(NAMES, self.types, strict=False)]
        if self.shape in ("primary", "primary full", "partitioned"):
            lines.append("PRIMARY KEY (id)")
        by = " PARTITION BY HASH (id)" if self.shape == "partitioned" else ""
        statements = [f"CREATE TABLE {table} ({', '.join(lines)}){by}"]
        if self.shape == "partitioned":
            for n in range(2):
                part = TableName(self.name.schema, f"{self.name.name}_{n}").quoted
                values = f"FOR VALUES WITH (MODULUS 2, REMAINDER {n})"
                statements.append(f"CREATE TABLE {part} PARTITION OF {table} {values}")
        statements.append(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
        if self.shape == "index":
            statements.append(f"CREATE UNIQUE INDEX {self.name.name}_key ON {table} (id)")
            statements.append(
                f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {self.name.name}_key"
            )
        if self.shape in ("full", "primary full"):
            statements.append(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        return "; ".join(statements)


def altered_tables() -> st.SearchStrategy[AlteredTable]:
    """Tables that have no name yet."""
    return st.builds(
        AlteredTable,
        st.just(TableName("", "")),
        st.sampled_from(SHAPES),
        st.lists(st.sampled_from((*EASY, *TYPES)), min_size=1, max_size=4).map(tuple),
    )


_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
           coalesce(a.attnum = ANY(i.indkey), false)
    FROM pg_attribute a
    LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND (i.indisprimary OR i.indisreplident)
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""


_UNLOGGED = "SELECT FROM pg_class WHERE oid = to_regclass(%s) AND relpersistence = 'u'"


class Alterations(Schedule):
    """Changes one table's columns and rows."""

    def __init__(self, sessions: list[Session], table: AlteredTable, log: list[str]) -> None:
        super().__init__(sessions, log)
        self.table = table

    def columns(self, session: Session) -> list[Column]:
        return [Column(*row) for row in session.fetch(_COLUMNS, self.table.name.quoted)]

    def statements(self, session: Session, verb: str, chance: Chance) -> Iterator[str]:
        table, columns = self.table.name.quoted, self.columns(session)
        match verb:
            case "alter":
                yield self._alter(columns, chance)
            case "script":  # two statements in one message to the server
                yield f"{self._alter(columns, chance)}; {self._alter(columns, chance)}"
            case "function":
                yield f"DO $do$ BEGIN {self._alter(columns, chance)}; END $do$"
            case "rekey":
                yield self._rekey(columns, chance)
            case "persist":
                # Nothing of a table is in the WAL meanwhile.
                yield f"ALTER TABLE {table} SET UNLOGGED"
                if not session.fetch(_UNLOGGED, table):
                    return
                yield self._change("insert", columns, chance)
                yield self._change("update", columns, chance)
                # Only a copy that is under way can be waited for here; given up, the table
                # would have left the publication.
                yield (
                    "SET LOCAL lock_timeout = '60s';"
                    f" ALTER TABLE {table} SET LOGGED; SET LOCAL lock_timeout = '2ms'"
                )
            case "vacuum":
                yield f"VACUUM FULL {table}"
            case _:
                yield self._change(verb, columns, chance)

    # Rows.

    def _change(self, verb: str, columns: list[Column], chance: Chance) -> str:
        table = self.table.name.quoted
        writable = [column for column in columns if not column.generated]
        free = [column for column in writable if not column.key]
        match verb:
            case "insert":
                taken = [c for c in writable if c.key or chance.random() < 0.7]
                names = ", ".join(c.quoted for c in taken)
                rows = ", ".join(
                    f"({', '.join(self._value(c, chance) for c in taken)})"
                    for _ in range(chance.choice([1, 1, 3]))
                )
                return f"INSERT INTO {table} ({names}) VALUES {rows} ON CONFLICT DO NOTHING"
            case "update":
                return self._set(chance.sample(free, min(len(free), 2)) if free else [], chance)
            case "move":
                return self._set([c for c in writable if c.key] or free[:1], chance)
            case "delete":
                return f"DELETE FROM {table} WHERE {self._where(chance)}"
            case "truncate":
                return f"TRUNCATE {table}"
        raise ValueError(verb)

    def _value(self, column: Column, chance: Chance) -> str:
        if column.name == "big":
            return f"repeat('{chance.randrange(10)}ü', 3000)"
        return column.value(chance)

    def _set(self, columns: list[Column], chance: Chance) -> str:
        sets = ", ".join(f"{c.quoted} = {self._value(c, chance)}" for c in columns) or "id = 1"
        return f"UPDATE {self.table.name.quoted} SET {sets} WHERE {self._where(chance)}"

    def _where(self, chance: Chance) -> str:
        first, count = chance.randrange(6), chance.choice([1, 2, 8])
        places = f"SELECT tableoid, ctid FROM {self.table.name.quoted} ORDER BY 1, 2"
        return f"(tableoid, ctid) IN ({places} OFFSET {first} LIMIT {count})"

    # Columns.

    def _alter(self, columns: list[Column], chance: Chance) -> str:
        table = self.table.name.quoted
        if columns and chance.random() < 0.2:  # which is a statement by itself
            old = chance.choice(columns)
            return f"ALTER TABLE {table} RENAME {old.quoted} TO {self._name(columns, chance)}"
        actions = [self._action(columns, chance) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
        return f"ALTER TABLE {table} {', '.join(actions)}"

    def _name(self, columns: list[Column], chance: Chance) -> str:
        free = sorted(set(NAMES) - {column.name for column in columns})
        return quoted(chance.choice(free if free and chance.random() < 0.9 else NAMES))

    def _action(self, columns: list[Column], chance: Chance) -> str:
        free = [column for column in columns if not column.key]
        if not free or chance.random() < 0.35:
            return self._add(columns, chance)
        any_column, column = chance.choice(columns), chance.choice(free)
        match chance.choice(["drop", "drop", "type", "type", "type", "null", "default", "other"]):
            case "drop":
                gone = chance.choice(columns) if self.table.shape == "full" else column
                return f"DROP {gone.quoted}"
            case "type":
                return self._retype(any_column, chance)
            case "null":
                way = chance.choice(["SET", "DROP"])
                return f"ALTER {column.quoted} {way} NOT NULL"
            case "default":
                return chance.choice(
                    [
                        f"ALTER {column.quoted} SET DEFAULT {literal(column.type, chance)}",
                        f"ALTER {column.quoted} DROP DEFAULT",
                    ]
                )
        return chance.choice(
            [
                f"ALTER {column.quoted} SET STATISTICS 10",
                f"ADD CHECK ({column.quoted} IS NOT NULL OR true)",
                "SET (fillfactor = 80)",
                "REPLICA IDENTITY FULL",
                "REPLICA IDENTITY DEFAULT" if "primary" in self.table.shape else "SET LOGGED",
            ]
        )

    def _add(self, columns: list[Column], chance: Chance) -> str:
        name, kind = self._name(columns, chance), any_type(chance)
        match chance.choice(["plain", "constant", "constant", "not null", "volatile", "generated"]):
            case "constant":
                return f"ADD {name} {kind} DEFAULT {literal(kind, chance)}"
            case "not null":
                return f"ADD {name} {kind} NOT NULL DEFAULT {literal(kind, chance)}"
            case "volatile":
                kind = chance.choice(list(VOLATILE))
                return f"ADD {name} {kind} DEFAULT {VOLATILE[kind]}"
            case "generated":
                source = next((c for c in columns if c.type == "integer"), None)
                if source is not None:
                    return f"ADD {name} integer GENERATED ALWAYS AS ({source.quoted} + 1) STORED"
        return f"ADD {name} {kind}"

    def _retype(self, column: Column, chance: Chance) -> str:
        cast = RETYPES.get(column.type, ("text",))
        match chance.choice(["cast", "cast", "text", "other", "same"]):
            case "cast":
                # The first is the one that can be followed in place.
                kind = cast[0] if chance.random() < 0.5 else chance.choice(cast)
                return f"ALTER {column.quoted} TYPE {kind}"
            case "text":
                kind = chance.choice(list(TYPES))
                return f"ALTER {column.quoted} TYPE {kind} USING {column.quoted}::text::{kind}"
            case "same":
                again = f"(ARRAY[{column.quoted}, NULL])[2]"
                return f"ALTER {column.quoted} TYPE {column.type} USING {again}"
        kind = chance.choice(list(TYPES))
        if column.key:
            return f"ALTER {column.quoted} TYPE bigint USING {column.quoted} + 100"
        return f"ALTER {column.quoted} TYPE {kind} USING {literal(kind, chance)}"

    def _rekey(self, columns: list[Column], chance: Chance) -> str:
        table, pool = self.table.name.quoted, [c for c in columns if not c.generated]
        key = f"{self.table.name.name}_pkey"
        if "primary" not in self.table.shape or not pool:
            return f"ALTER TABLE {table} ALTER {columns[0].quoted} SET NOT NULL"
        chosen = ", ".join(c.quoted for c in chance.sample(pool, min(len(pool), 1)))
        return f"ALTER TABLE {table} DROP CONSTRAINT {key}, ADD PRIMARY KEY ({chosen})"
