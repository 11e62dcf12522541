"""The terms on which a table is published, and which changes of them the stream leaves out.

The stream carries changes of rows. It does not carry what happens to rows by the
way in which they belong to a published table:

- A partition that is sent under its root's name brings its rows when it is attached
  and takes them when it is detached or dropped. A TRUNCATE of it alone is not sent
  either. It gives the partition another file, like one of the root, which is sent: the
  transaction that made the file tells them apart.
- What happens to a table while it is outside the publication is not sent, and nobody
  who looks only now and then can see that it was outside for a moment. It is outside
  while it is in another schema, too, where the publication has the schema.
- What happens to partitions is sent under their root's name, or under their own, as
  `publish_via_partition_root` is at that moment; the other one misses it. So does a
  table that is published by itself and was a partition for a moment.
- Another row filter makes other rows belong. What happened while the publication left out
  deletes, say, is not sent when it has them again.
- Rows show other values when a label of an enum is renamed, or when a composite type gets or
  loses an attribute: these are stored as numbers, and put into words when they are read.

So the terms of a copy are kept, and compared with those that the catalog shows
later. Where they are broken only another copy helps. A partition that came and went
between two looks is not in the catalog any more; if it got rows, the stream has told of
it before the first of them, and of the name that it was sent under.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from penstock.postgres.connection import Session, server_version, translated
from penstock.states import VisibleXids

_FIRST_BLOCKS = 64
_AGED = 2**28
_EVERYTHING = "insert, update, delete, truncate"
_PRINTED_PARTS = {"label": "an enum's label", "row": "a composite type's attributes"}


@dataclass(frozen=True, slots=True)
class Partition:
    """A relation that holds rows of a partitioned table.

    `links` are the transactions that tied it to its ancestors. A partition that may have
    been `attached` may have had rows before; one that was created as such had none. `file` is
    where its rows are (0 where nobody wants to hear of a TRUNCATE: the publication leaves
    them out), and `touched_by` the transaction that changed its entry in the
    catalog last: a TRUNCATE does, when it gives it another file.
    """

    name: str
    links: tuple[str, ...]
    attached: bool
    file: int = 0
    touched_by: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """`entries` name the rows of the catalog that put the table into the publication: made
    anew when it leaves and comes back, and when its filter or column list is set anew.
    `printed` is what the parts of its columns' types are printed as: the labels of enums,
    the attributes of composite types. The terms were `seen` together with these
    transactions, on this `timeline` of the server's. Those before `since`, at first the copy's,
    are known to have broken nothing.

    `options` is the transaction that last set the publication's options, for tables that
    are partitioned or partitions; None for others. `columns` has each column with the
    transaction that last touched it: to attach or detach a table touches all of them. None
    where partitions are published by themselves, and it makes no difference. `sends` is
    the publication's `publish`.
    """

    entries: frozenset[str] = frozenset()
    row_filter: str | None = None
    partitions: Mapping[int, Partition] = field(default_factory=dict)
    options: str | None = None
    columns: frozenset[str] = frozenset()
    printed: Mapping[str, str] = field(default_factory=dict)
    sends: str = _EVERYTHING
    timeline: int = field(default=0, compare=False)
    seen: VisibleXids | None = field(default=None, compare=False)
    since: VisibleXids | None = field(default=None, compare=False)

    def broken_by(self, now: Terms) -> str | None:
        """What has happened since that no change in the stream tells of; None if nothing has."""
        if self.sends != now.sends:
            return f"the publication sends {now.sends or 'nothing'} now"
        if self.row_filter != now.row_filter:
            return "its row filter was changed"
        if not self.entries & now.entries:
            return "it was put into the publication anew"
        if None not in (self.options, now.options) and self.options != now.options:
            return "the publication's options were set anew"
        if self.columns and now.columns and not self.columns & now.columns:
            return "it was attached or detached"
        for oid, before in self.partitions.items():
            after = now.partitions.get(oid)
            if after is None or after.links != before.links:
                return f"partition {before.name} was detached or dropped"
        for part, was in self.printed.items():
            if (shown := now.printed.get(part, was)) != was:
                return f"{_PRINTED_PARTS[part.split()[0]]} {was} became {shown}"
        return None

    @property
    def exact(self) -> bool:
        """Whether everything is sent that happens to the table's rows."""
        return self.sends == _EVERYTHING

    def joined_by(self, now: Terms) -> dict[int, Partition]:
        """The partitions that are new, and may have brought rows."""
        return {
            oid: new
            for oid, new in now.partitions.items()
            if new.attached and oid not in self.partitions
        }

    def judged_since(self, now: Terms, xid: int) -> bool:
        """Whether a transaction ended after `since`, and before these terms were seen."""
        if self.since is None or now.seen is None:
            return False
        return now.seen.contains(xid) and not self.since.contains(xid)

    def aged(self, now: Terms) -> bool:
        """Whether `since` is so long ago that the stream's transaction ids would soon seem
        to be older than it: they have 32 bits."""
        if self.since is None or now.seen is None:
            return now.seen is not None
        return now.seen.xmax - self.since.xmax > _AGED

    def refiled_by(self, now: Terms) -> dict[int, Partition]:
        """The partitions whose rows are in another file now.

        Rows may be lost then, unless the transaction that touched it last truncated the
        whole table, which the stream tells: what was before does not matter any more.
        """
        refiled = {}
        for oid, new in now.partitions.items():
            # A table's first file has its oid for a number.
            before = self.partitions[oid].file if oid in self.partitions else oid
            if before != new.file and 0 not in (before, new.file):
                refiled[oid] = new
        return refiled

    def send_the_same(self, other: Terms) -> bool:
        """Whether on both terms the same changes of the table's own are sent."""
        return replace(self, partitions={}) == replace(other, partitions={})

    def to_json(self) -> dict[str, Any]:
        return {
            "entries": sorted(self.entries),
            "row_filter": self.row_filter,
            "options": self.options,
            "columns": sorted(self.columns),
            "printed": dict(self.printed),
            "sends": self.sends,
            "timeline": self.timeline,
            "seen": self.seen and str(self.seen),
            "since": self.since and str(self.since),
            "partitions": {
                str(oid): [each.name, list(each.links), each.attached, each.file, each.touched_by]
                for oid, each in self.partitions.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            frozenset(data["entries"]),
            data["row_filter"],
            {
                int(oid): Partition(name, tuple(links), *others)
                for oid, (name, links, *others) in data["partitions"].items()
            },
            data.get("options"),
            frozenset(data.get("columns", ())),
            data.get("printed", {}),
            data.get("sends", _EVERYTHING),
            data.get("timeline", 0),
            *(data.get(name) and VisibleXids.parse(data[name]) for name in ("seen", "since")),
        )


_ENTRIES = """
    SELECT t.oid, e.entry,
           (SELECT pub.xmin::text FROM pg_class own
            WHERE own.oid = t.oid AND (own.relispartition OR own.relkind = 'p'))
    FROM unnest(%(oids)s::oid[]) AS t(oid)
    JOIN pg_publication pub ON pub.pubname = %(publication)s
    CROSS JOIN LATERAL (
        SELECT c.oid, c.relnamespace FROM pg_class c
        WHERE c.oid = t.oid OR c.oid IN (SELECT relid FROM pg_partition_ancestors(t.oid))
    ) c
    CROSS JOIN LATERAL (
        SELECT 'all ' || pub.oid AS entry WHERE pub.puballtables
        UNION ALL
        SELECT 'table ' || r.oid FROM pg_publication_rel r
        WHERE r.prpubid = pub.oid AND r.prrelid = c.oid
        {schemas}
    ) e
"""
# Since version 15. A table's dependency on its schema is made anew when it moves.
_SCHEMA_ENTRIES = """
        UNION ALL
        SELECT format('schema %%s %%s', s.oid, d.xmin)
        FROM pg_publication_namespace s
        LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
         AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass
        WHERE s.pnpubid = pub.oid AND s.pnnspid = c.relnamespace
"""

_COLUMNS = """
    SELECT attrelid, array_agg(format('%%s %%s', attnum, pg_attribute.xmin))
    FROM pg_attribute
    JOIN pg_publication ON pubname = %(publication)s AND pubviaroot
    WHERE attrelid = ANY(%(oids)s::oid[]) AND attnum > 0 AND NOT attisdropped
    GROUP BY attrelid
"""

# A column of the system's own is as old as its table, whatever is altered later: a link
# of the same transaction was made by CREATE TABLE ... PARTITION OF. Or else by ATTACH PARTITION,
# which touches every other column.
_PARTITIONS = """
    WITH RECURSIVE parts(root, oid, links, attached) AS (
        SELECT c.oid, c.oid, '{}'::text[], false
        FROM pg_class c WHERE c.oid = ANY(%(oids)s::oid[]) AND c.relkind = 'p'
        UNION ALL
        SELECT parts.root, i.inhrelid, parts.links || i.xmin::text,
               parts.attached OR i.xmin IS DISTINCT FROM a.xmin OR NOT EXISTS (
                   SELECT FROM pg_attribute own WHERE own.attrelid = i.inhrelid
                   AND own.attnum > 0 AND own.xmin = a.xmin AND own.cmin = a.cmin
                   AND own.xmax = 0 AND a.xmax = 0) -- else cmin may be something else
        FROM parts
        JOIN pg_inherits i ON i.inhparent = parts.oid
        LEFT JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -1)
    SELECT parts.root, c.oid, n.nspname || '.' || c.relname, parts.links, parts.attached,
           CASE WHEN pub.pubtruncate THEN c.relfilenode::bigint ELSE 0 END, c.xmin::text::bigint
    FROM parts
    JOIN pg_class c USING (oid)
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_publication pub ON pub.pubname = %(publication)s
    WHERE c.relkind = 'r' AND c.relpersistence = 'p'
"""


# What types are made of: domains of another, arrays of elements, composites of attributes,
# ranges of a subtype. A label that is added, or an attribute renamed, changes no row.
_PRINTED = """
    WITH RECURSIVE used(root, oid) AS (
        SELECT a.attrelid, a.atttypid FROM pg_attribute a
        WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
          AND a.atttypid >= 16384 -- the system's own have no such parts
        UNION
        SELECT used.root, part.oid
        FROM used
        JOIN pg_type t ON t.oid = used.oid
        CROSS JOIN LATERAL (
            SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL
            SELECT t.typelem WHERE t.typelem <> 0
            UNION ALL
            SELECT a.atttypid FROM pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0
              AND NOT a.attisdropped
            UNION ALL
            SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        ) AS part(oid)
        WHERE part.oid >= 16384)
    SELECT used.root, 'label ' || e.oid, e.enumlabel::text
    FROM used JOIN pg_enum e ON e.enumtypid = used.oid
    UNION ALL
    SELECT used.root, 'row ' || used.oid, (
        SELECT coalesce('(' || string_agg(a.attnum::text, ',' ORDER BY a.attnum) || ')', '()')
        FROM pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
    FROM used JOIN pg_type t USING (oid) WHERE t.typtype = 'c'
"""

# Before everything else, so that what is read afterwards is not older.
_MOMENT = """
    SELECT pg_current_snapshot()::text,
           CASE WHEN pg_is_in_recovery() THEN '0'
                ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END
"""

_SENDS = """
    SELECT concat_ws(', ', CASE WHEN pubinsert THEN 'insert' END,
                     CASE WHEN pubupdate THEN 'update' END, CASE WHEN pubdelete THEN 'delete' END,
                     CASE WHEN pubtruncate THEN 'truncate' END)
    FROM pg_publication WHERE pubname = %(publication)s
"""


def publication_terms(
    session: Session, publication: str, row_filters: Mapping[int, str | None]
) -> dict[int, Terms]:
    """The terms of tables, by oid; `row_filters` has theirs. Locks nothing."""
    schemas = _SCHEMA_ENTRIES if server_version(session) >= 150000 else ""
    parameters = {"oids": list(row_filters), "publication": publication}
    entries: dict[int, set[str]] = defaultdict(set)
    partitions: dict[int, dict[int, Partition]] = defaultdict(dict)
    options: dict[int, str | None] = {}
    columns: dict[int, list[str]] = {}
    printed: dict[int, dict[str, str]] = defaultdict(dict)
    with translated(f"reading the terms of publication {publication}"):
        ((snapshot, timeline),) = session.execute(_MOMENT).fetchall()
        seen = VisibleXids.parse(snapshot)
        ((sends,),) = session.execute(_SENDS, parameters).fetchall() or [("",)]
        query = _ENTRIES.format(schemas=schemas)
        for oid, entry, options[oid] in session.execute(query.encode(), parameters):
            entries[oid].add(entry)
        columns.update(session.execute(_COLUMNS, parameters).fetchall())
        for root, oid, name, links, *others in session.execute(_PARTITIONS, parameters):
            partitions[root][oid] = Partition(name, tuple(links), *others)
        for oid, part, text in session.execute(_PRINTED, parameters):
            printed[oid][part] = text
    return {
        oid: Terms(
            frozenset(entries[oid]),
            row_filter,
            partitions[oid],
            options.get(oid),
            frozenset(columns.get(oid, ())),
            printed[oid],
            sends,
            int(timeline, 16),
            seen,
            since=seen,
        )
        for oid, row_filter in row_filters.items()
    }


def brought_rows(session: Session, partitions: Iterable[int]) -> bool:
    """Whether one of these has rows that may be from before it was attached, or is gone.

    No row tells when it came: ids of transactions are not in the order of events. Only
    one that never had any is sure to have brought none.
    """
    with translated("looking for rows that a partition has brought"):
        sizes = session.execute(
            "SELECT pg_relation_size(oid) FROM unnest(%s::oid[]) AS oid", [list(partitions)]
        )
        return any(size != 0 for (size,) in sizes)


def kept_rows(session: Session, partitions: Iterable[int], seen: VisibleXids) -> bool:
    """Whether each of these partitions has a row of a transaction from before all that
    were running when the terms were `seen`.

    Then none was truncated since, whatever else has given it another file: VACUUM FULL
    and CLUSTER leave rows their transactions. Only the first blocks are looked at, where
    both put the oldest rows, usually.
    """
    for oid in partitions:
        with translated("looking for rows that a rewrite has left"):
            row = session.execute(
                "SELECT oid::regclass::text FROM pg_class WHERE oid = %s", [oid]
            ).fetchone()
            if row is None:
                return False
            query = f"""
                SELECT FROM ONLY {row[0].replace("%", "%%")}
                WHERE ctid < '({_FIRST_BLOCKS},0)' AND age(xmin) > age(%s::xid) LIMIT 1
            """
            if session.execute(query.encode(), [str(seen.xmin % 2**32)]).fetchone() is None:
                return False
    return True
