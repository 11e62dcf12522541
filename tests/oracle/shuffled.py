"""Tables that come into a publication, leave it, and change places, while they are written to.

A few names stand for everything: plain tables, a partitioned one and tables that may be its
partitions, in two schemas. What stands under a name is whatever the catalog says; a statement
that does not fit is refused by Postgres, and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.schema import TableName
from tests.oracle.sessions import Chance, Schedule, Session

COLUMNS = "id integer NOT NULL, area text NOT NULL, v integer, w text"
NAMES = ("one", "two", "three")
ROOT = "root"
PARTS = ("part_n", "part_s", "part_x")
AREAS = ("n", "s", "x")
FILTERS = ("id > 4", "id < 8", "id % 2 = 0", "area <> 'n'")
LISTS = ("id, area, v", "id, area", "id, area, w", "w, area, id")
ANCHOR = "public.anchor"
"""A table that is always published: a publication without any is an error."""

EVERYTHING = "insert, update, delete, truncate"
PUBLISH = (EVERYTHING, "insert, update, delete", "insert, delete", "delete, truncate")
KEYS = 12

# With what of a publication's `publish` each needs; an update may take a row out of a filter.
WRITING = {
    "insert": {"insert"},
    "update": {"insert", "update", "delete"},
    "move": {"insert", "update", "delete"},
    "delete": {"delete"},
    "truncate": {"truncate"},
}
_ROWS = {"insert": 7, "update": 5, "move": 2, "delete": 2, "truncate": 1}
_ENDS = {"begin": 4, "commit": 5, "rollback": 1, "savepoint": 1, "rollback to": 1, "release": 1}
_PUBLICATION = {"add": 4, "leave": 4, "set": 3, "whole schema": 2, "via root": 1, "publish": 1}
_PARTITIONS = {"attach": 3, "detach": 3, "partition": 2}
_TABLES = {"rename": 3, "swap": 1, "move schema": 3, "drop": 2, "create": 4, "replace": 2}
_COLUMNS = {"column": 2, "identity": 1}
VERBS = _ROWS | _ENDS | _PUBLICATION | _PARTITIONS | _TABLES | _COLUMNS
PAUSES = {"receive": 2, "settle": 2}


@dataclass(frozen=True)
class World:
    """Two schemas, whose tables are in the publication or not."""

    near: str
    far: str
    publication: str

    @property
    def schemas(self) -> tuple[str, str]:
        return self.near, self.far

    def create(self) -> list[str]:
        near = self.near
        return [
            *(f"CREATE SCHEMA {schema}" for schema in self.schemas),
            *(_plain(TableName(near, name)) for name in NAMES),
            *_partitioned(TableName(near, ROOT), TableName(near, PARTS[0])),
            _plain(TableName(near, PARTS[2])),
            *(
                f"INSERT INTO {near}.{name} SELECT g, '{area}', g, 'w' || g"
                f" FROM generate_series(1, 6) g"
                for name, area in ((NAMES[0], "s"), (NAMES[1], "n"), (ROOT, "n"), (PARTS[2], "x"))
            ),
            f"ALTER PUBLICATION {self.publication} ADD TABLE {near}.{NAMES[0]}, {near}.{ROOT}",
        ]

    def drop(self) -> list[str]:
        alter = f"ALTER PUBLICATION {self.publication}"
        return [
            *(f"DROP SCHEMA {schema} CASCADE" for schema in self.schemas),
            f"{alter} SET TABLE {ANCHOR}",
            f"{alter} SET (publish_via_partition_root = true, publish = '{EVERYTHING}')",
        ]


def _plain(name: TableName) -> str:
    return f"CREATE TABLE {name.quoted} ({COLUMNS}, PRIMARY KEY (id, area))"


def _partitioned(name: TableName, part: TableName) -> list[str]:
    return [
        f"{_plain(name)} PARTITION BY LIST (area)",
        f"CREATE TABLE {part.quoted} PARTITION OF {name.quoted} FOR VALUES IN ('n')",
    ]


class Shuffling(Schedule):
    """Changes the tables of a world, their rows and the publication."""

    def __init__(self, sessions: list[Session], world: World, log: list[str]) -> None:
        super().__init__(sessions, log)
        self.world = world

    def _tables(self, session: Session, *, partitions: bool | None = None) -> list[TableName]:
        """All there are; or those that are somebody's partitions, or are not."""
        rows = session.fetch(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = ANY(%s) AND c.relkind IN ('r', 'p')"
            " AND c.relispartition IS DISTINCT FROM NOT %s ORDER BY 1, 2",
            list(self.world.schemas),
            partitions,
        )
        return [TableName(*row) for row in rows]

    def _sent(self, session: Session) -> set[str]:
        kinds = ("insert", "update", "delete", "truncate")
        (sent,) = session.fetch(
            f"SELECT {', '.join(f'pub{kind}' for kind in kinds)} FROM pg_publication"
            " WHERE pubname = %s",
            self.world.publication,
        )
        return {kind for kind, is_sent in zip(kinds, sent, strict=True) if is_sent}

    def statements(self, session: Session, verb: str, chance: Chance) -> Iterator[str]:
        waits = verb in ("detach", "drop", "replace")
        if waits and not all(each.idle for each in self.sessions):
            return
        # A TRUNCATE of one partition is not sent under its root's name.
        wanted = {"truncate": False, "attach": False, "detach": True}
        found = self._tables(session, partitions=wanted.get(verb))
        tables = found or [TableName(self.world.near, NAMES[0])]
        table = chance.choice(tables)
        match verb:
            case "insert" | "update" | "move" | "delete" | "truncate":
                # What is not sent is not in the stream, and then nobody says what is right.
                if self._sent(session) >= WRITING[verb]:
                    yield self._change(verb, table, chance)
            case "publish":
                if all(each.idle for each in self.sessions):
                    sent = chance.choice(PUBLISH)
                    yield f"ALTER PUBLICATION {self.world.publication} SET (publish = '{sent}')"
            case "add" | "leave" | "set" | "whole schema" | "via root":
                yield self._publish(verb, table, tables, chance)
            case "attach" | "detach" | "partition":
                yield self._partition(verb, table, self._tables(session), chance)
            case "swap":
                other = chance.choice(tables)
                if table.schema == other.schema and table != other:
                    yield (
                        f"ALTER TABLE {table.quoted} RENAME TO between;"
                        f" ALTER TABLE {other.quoted} RENAME TO {table.name};"
                        f" ALTER TABLE {table.schema}.between RENAME TO {other.name}"
                    )
            case _:
                yield self._remake(verb, table, chance)

    def _change(self, verb: str, table: TableName, chance: Chance) -> str:
        area, key, number = chance.choice(AREAS), chance.randrange(KEYS), chance.randrange(100)
        where = f"id % 3 = {key % 3}" if chance.random() < 0.4 else f"id = {key}"
        match verb:
            case "insert":
                values = ", ".join(
                    f"({(key + n) % KEYS}, '{area}', {number}, 'w{n}')"
                    for n in range(chance.choice([1, 3]))
                )
                return (
                    f"INSERT INTO {table.quoted} (id, area, v, w) VALUES {values}"
                    " ON CONFLICT DO NOTHING"
                )
            case "update":
                return f"UPDATE {table.quoted} SET v = {number}, w = 'u{number}' WHERE {where}"
            case "move":
                change = chance.choice([f"id = {number % KEYS}", f"area = '{area}'"])
                return f"UPDATE {table.quoted} SET {change} WHERE id = {key}"
            case "delete":
                return f"DELETE FROM {table.quoted} WHERE {where}"
        return f"TRUNCATE {table.quoted}"

    def _publish(self, verb: str, table: TableName, tables: list[TableName], chance: Chance) -> str:
        alter = f"ALTER PUBLICATION {self.world.publication}"
        match verb:
            case "add":
                return f"{alter} ADD TABLE {self._entry(table, chance)}"
            case "leave":
                return f"{alter} DROP TABLE {table.quoted}"
            case "set":
                chosen = chance.sample(tables, min(len(tables), chance.randint(1, 4)))
                entries = ", ".join(self._entry(each, chance) for each in chosen)
                return f"{alter} SET TABLE {entries}, {ANCHOR}"
            case "whole schema":
                way = chance.choice(["ADD", "DROP"])
                return f"{alter} {way} TABLES IN SCHEMA {chance.choice(self.world.schemas)}"
        value = chance.choice(["true", "false"])
        return f"{alter} SET (publish_via_partition_root = {value})"

    def _entry(self, table: TableName, chance: Chance) -> str:
        match chance.choice(["plain", "plain", "filter", "list", "both"]):
            case "filter":
                return f"{table.quoted} WHERE ({chance.choice(FILTERS)})"
            case "list":
                return f"{table.quoted} ({chance.choice(LISTS)})"
            case "both":
                return f"{table.quoted} ({chance.choice(LISTS)}) WHERE ({chance.choice(FILTERS)})"
        return table.quoted

    def _partition(
        self, verb: str, table: TableName, tables: list[TableName], chance: Chance
    ) -> str:
        root = chance.choice([t for t in tables if t.name == ROOT] or [table])
        area = chance.choice(AREAS)
        match verb:
            case "attach":
                return (
                    f"ALTER TABLE {root.quoted} ATTACH PARTITION {table.quoted}"
                    f" FOR VALUES IN ('{area}')"
                )
            case "detach":
                return f"ALTER TABLE {root.quoted} DETACH PARTITION {table.quoted}"
        part = TableName(root.schema, f"part_{area}")
        return f"CREATE TABLE {part.quoted} PARTITION OF {root.quoted} FOR VALUES IN ('{area}')"

    def _remake(self, verb: str, table: TableName, chance: Chance) -> str:
        name = TableName(chance.choice(self.world.schemas), chance.choice((*NAMES, *PARTS)))
        match verb:
            case "rename":
                return f"ALTER TABLE {table.quoted} RENAME TO {name.name}"
            case "move schema":
                return f"ALTER TABLE {table.quoted} SET SCHEMA {name.schema}"
            case "drop":
                return f"DROP TABLE {table.quoted}"
            case "create":
                rows = f"INSERT INTO {name.quoted} VALUES (1, 'n', 0, 'created')"
                return f"{_plain(name)}; {rows}"
            case "replace":
                rows = f"INSERT INTO {table.quoted} VALUES (2, 's', 0, 'replaced')"
                return f"DROP TABLE {table.quoted}; {_plain(table)}; {rows}"
            case "column":
                return chance.choice(
                    [
                        f"ALTER TABLE {table.quoted} ADD x integer DEFAULT 5",
                        f"ALTER TABLE {table.quoted} DROP x",
                        f"ALTER TABLE {table.quoted} ALTER v TYPE bigint",
                    ]
                )
        way = chance.choice(["FULL", "DEFAULT"])
        return f"ALTER TABLE {table.quoted} REPLICA IDENTITY {way}"
