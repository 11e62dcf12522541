"""The terms on which tables are published (see `terms`), read from the catalog. Locks nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from penstock.postgres.connection import Session, server_version, translated
from penstock.postgres.ddl_triggers import TriggerState, trigger_state
from penstock.publication_drift.terms import Partition, Terms
from penstock.states import VisibleXids

_FIRST_BLOCKS = 64

_ENTRIES = """
    SELECT t.oid, e.entry,
           (SELECT own.relispartition OR own.relkind = 'p' FROM pg_class own WHERE own.oid = t.oid)
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
        JOIN pg_inherits i ON i.inhparent = parts.oid AND NOT i.inhdetachpending
        LEFT JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -1)
    SELECT parts.root, c.oid, n.nspname || '.' || c.relname, parts.links, parts.attached,
           CASE WHEN pub.pubtruncate THEN c.relfilenode::bigint ELSE 0 END, c.xmin::text::bigint
    FROM parts
    JOIN pg_class c USING (oid)
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_publication pub ON pub.pubname = %(publication)s
    WHERE c.relkind = 'r' AND c.relpersistence = 'p'
"""

_OWN_ROWS = """
    SELECT c.oid, n.nspname || '.' || c.relname, false,
           CASE WHEN pub.pubtruncate THEN c.relfilenode::bigint ELSE 0 END, c.xmin::text::bigint,
           c.reltoastrelid::bigint
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_publication pub ON pub.pubname = %(publication)s
    WHERE c.oid = ANY(%(oids)s::oid[]) AND c.relkind = 'r'
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

_OPTIONS = """
    SELECT concat_ws(', ', CASE WHEN pubinsert THEN 'insert' END,
                     CASE WHEN pubupdate THEN 'update' END, CASE WHEN pubdelete THEN 'delete' END,
                     CASE WHEN pubtruncate THEN 'truncate' END),
           xmin::text, md5(to_jsonb(pg_publication)::text)
    FROM pg_publication WHERE pubname = %(publication)s
"""


def publication_terms(
    session: Session, publication: str, row_filters: Mapping[int, str | None]
) -> dict[int, Terms]:
    """The terms of tables, by oid; `row_filters` has theirs."""
    schemas = _SCHEMA_ENTRIES if server_version(session) >= 150000 else ""
    parameters = {"oids": list(row_filters), "publication": publication}
    entries: dict[int, set[str]] = defaultdict(set)
    partitions: dict[int, dict[int, Partition]] = defaultdict(dict)
    parted: dict[int, bool] = {}
    columns: dict[int, list[str]] = {}
    printed: dict[int, dict[str, str]] = defaultdict(dict)
    with translated(f"reading the terms of publication {publication}"):
        ((snapshot, timeline),) = session.execute(_MOMENT).fetchall()
        seen = VisibleXids.parse(snapshot)
        found = session.execute(_OPTIONS, parameters).fetchone()
        sends, options, shown = found or ("", None, "")
        query = _ENTRIES.format(schemas=schemas)
        for oid, entry, parted[oid] in session.execute(query.encode(), parameters):
            entries[oid].add(entry)
        columns.update(session.execute(_COLUMNS, parameters).fetchall())
        for root, oid, name, links, *others in session.execute(_PARTITIONS, parameters):
            partitions[root][oid] = Partition(name, tuple(links), *others)
        if trigger_state(session) is TriggerState.MISSING:
            for oid, name, *others in session.execute(_OWN_ROWS, parameters):
                partitions[oid][oid] = Partition(name, (), *others)
        for oid, part, text in session.execute(_PRINTED, parameters):
            printed[oid][part] = text
    return {
        oid: Terms(
            frozenset(entries[oid]),
            row_filter,
            partitions[oid],
            options,
            frozenset(columns.get(oid, ())),
            printed[oid],
            sends,
            "" if parted.get(oid) else shown,
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
