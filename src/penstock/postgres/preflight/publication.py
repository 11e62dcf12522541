"""Whether every table of the publication can be copied, and followed afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from penstock.config import PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.findings import Finding, error, from_error, listed, warning
from penstock.postgres.catalog import Publication, PublishedTable, publication, published_tables
from penstock.postgres.connection import Session, server_version, translated
from penstock.postgres.copy_targets import copy_targets
from penstock.postgres.preflight.identity import identity_findings
from penstock.postgres.preflight.queries import row
from penstock.schema import TableName, quote_identifier

_NAMING_TYPES = frozenset(
    f"reg{what}"
    for what in (
        "class",
        "collation",
        "config",
        "dictionary",
        "namespace",
        "oper",
        "operator",
        "proc",
        "procedure",
        "role",
        "type",
    )
)


def publication_findings(session: Session, config: PipelineConfig) -> Iterator[Finding]:
    """Whether there is something to replicate, and what hinders it, table by table."""
    name = config.publication_name
    quoted = quote_identifier(name)
    subject = f"publication {name}"
    found = publication(session, name)
    if found is None:
        others = row(session, "SELECT string_agg(pubname, ', ' ORDER BY 1) FROM pg_publication")[0]
        yield error(
            subject,
            "does not exist in this database" + (f" (there are: {others})" if others else ""),
            f"CREATE PUBLICATION {quoted} FOR ALL TABLES; -- or FOR TABLE first, second, ...",
        )
        return
    try:
        tables = published_tables(session, name, config.column_types)
    except PenstockError as failure:
        yield from_error(subject, failure)
        return
    if not tables:
        yield error(
            subject,
            "holds no tables",
            f'ALTER PUBLICATION {quoted} ADD TABLE "schema"."table";',
        )
    yield from _operations(found)
    for finding in _hindrances(session, config, found, tables):
        yield replace(finding, of_tables=True)
    yield from _generated_columns(session, found, tables)
    yield from _unlogged_partitions(session, tables)
    yield from _names_of_others(tables)
    yield from _unknown_names(config, tables)


def _hindrances(
    session: Session, config: PipelineConfig, found: Publication, tables: list[PublishedTable]
) -> Iterator[Finding]:
    """What keeps single tables from being copied, or followed."""
    copied = [t for t in tables if config.table_sync_copy.includes(str(t.schema.name))]
    yield from _privileges(session, found.name, copied)
    yield from _policies(session, copied)
    yield from identity_findings(session, found, tables)
    for table in tables:
        if table.refusal is not None:
            refusal = table.refusal
            yield error(
                f"table {table.schema.name}", refusal.message, refusal.hint or "", refusal.kind
            )


def _operations(found: Publication) -> Iterator[Finding]:
    sent = {
        "insert": found.inserts,
        "update": found.updates,
        "delete": found.deletes,
        "truncate": found.truncates,
    }
    missing = [operation for operation, is_sent in sent.items() if not is_sent]
    if missing:
        yield warning(
            f"publication {found.name}",
            f"does not send {listed(missing)}: the destination will differ after those",
            f"ALTER PUBLICATION {quote_identifier(found.name)}"
            f" SET (publish = '{', '.join(sent)}');",
        )


def _privileges(
    session: Session, publication_name: str, tables: list[PublishedTable]
) -> Iterator[Finding]:
    """The copy reads partitions themselves, and a grant on their root is not one on them.

    Where columns are granted one by one, it needs those of its conditions too: `ctid`, by which
    large tables are read in ranges, and what the row filter looks at.
    """
    role = quote_identifier(row(session, "SELECT current_user")[0])
    unreadable: dict[str, list[TableName]] = defaultdict(list)
    piecemeal: list[tuple[TableName, list[str]]] = []
    closed: set[str] = set()
    for table in tables:
        columns = ["ctid", *(column.name for column in table.schema.columns)]
        columns += [n for n in _filtered_by(session, publication_name, table) if n not in columns]
        for target in copy_targets(session, table.schema):
            usage, select, some, missing = row(
                session,
                """
                SELECT has_schema_privilege(n.oid, 'USAGE'),
                       has_table_privilege(c.oid, 'SELECT'),
                       has_any_column_privilege(c.oid, 'SELECT'),
                       ARRAY(SELECT name FROM unnest(%s::text[]) WITH ORDINALITY AS u(name, place)
                             WHERE NOT has_column_privilege(c.oid, name, 'SELECT') ORDER BY place)
                FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = %s AND c.relname = %s
                """,
                [columns, target.name.schema, target.name.name],
            )
            if not usage:
                closed.add(target.name.schema)
            if select or not missing:
                continue
            if some:
                piecemeal.append((target.name, missing))
            else:
                unreadable[target.name.schema].append(target.name)
    for schema in sorted(closed):
        yield error(
            f"schema {schema}",
            "may not be used by the role, so its tables cannot be copied",
            f"GRANT USAGE ON SCHEMA {quote_identifier(schema)} TO {role};",
            ErrorKind.SOURCE_PRIVILEGE,
        )
    for schema, names in sorted(unreadable.items()):
        yield error(
            f"schema {schema}",
            f"the role may not read {listed(names)}",
            f"GRANT SELECT ON {', '.join(name.quoted for name in names)} TO {role};",
            ErrorKind.SOURCE_PRIVILEGE,
        )
    for name, missing in piecemeal:
        quoted = ", ".join(quote_identifier(column) for column in missing)
        yield error(
            f"table {name}",
            f"the role may read some columns, but a copy also needs {listed(missing)}",
            f"GRANT SELECT ({quoted}) ON {name.quoted} TO {role};",
            ErrorKind.SOURCE_PRIVILEGE,
        )


def _filtered_by(session: Session, publication_name: str, table: PublishedTable) -> list[str]:
    """The columns that the table's row filter looks at."""
    if table.row_filter is None:
        return []
    query = """
        SELECT array_agg(DISTINCT a.attname::text)
        FROM pg_publication p
        JOIN pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_depend d ON d.classid = 'pg_publication_rel'::regclass AND d.objid = r.oid
        JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE p.pubname = %s AND d.refclassid = 'pg_class'::regclass
          AND r.prrelid = %s AND d.refobjid = r.prrelid AND a.attnum > 0
    """
    names = row(session, query, [publication_name, table.schema.id.oid])[0]
    return list(names or [])


def _policies(session: Session, tables: list[PublishedTable]) -> Iterator[Finding]:
    role = quote_identifier(row(session, "SELECT current_user")[0])
    hidden = [
        table.schema.name
        for table in tables
        if row(session, "SELECT row_security_active(%s::oid)", [table.schema.id.oid])[0]
    ]
    if hidden:
        yield error(
            "row security",
            f"policies hide rows of {listed(hidden)} from the role, so a copy would lack them",
            f"ALTER ROLE {role} BYPASSRLS;",
            ErrorKind.SOURCE_PRIVILEGE,
        )


def _generated_columns(
    session: Session, found: Publication, tables: list[PublishedTable]
) -> Iterator[Finding]:
    query = """
        SELECT array_agg(attname::text ORDER BY attnum) FILTER (WHERE attgenerated <> ''),
               array_agg(attname::text) FILTER (WHERE attgenerated = ''),
               coalesce(bool_and(attgenerated = 's') FILTER (WHERE attgenerated <> ''), false)
        FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
    """
    for table in tables:
        generated, plain, stored = row(session, query, [table.schema.id.oid])
        sent = {column.name for column in table.schema.columns}
        unsent = [name for name in generated or [] if name not in sent]
        if not unsent or not set(plain or []) <= sent:
            continue  # a column list that leaves things out does so on purpose
        can_send = stored and server_version(session) >= 180000
        yield warning(
            f"table {table.schema.name}",
            f"generated columns are not sent, the destination will lack them: {listed(unsent)}",
            f"ALTER PUBLICATION {quote_identifier(found.name)}"
            " SET (publish_generated_columns = stored);"
            if can_send
            else "-- compute them where they are read",
        )


def _names_of_others(tables: list[PublishedTable]) -> Iterator[Finding]:
    """Columns of regclass and its kin hold numbers, and show the names of what has them."""
    for table in tables:
        columns = [
            column.name
            for column in table.schema.columns
            if column.type_name.removesuffix("[]") in _NAMING_TYPES
        ]
        if columns:
            yield warning(
                f"table {table.schema.name}",
                f"{listed(columns)}: shows names, and no change is sent when what has a name"
                " is renamed or dropped",
                "-- `penstock resync` the table after such a change, or keep the number (oid) or"
                " the name (text)",
            )


def _unlogged_partitions(session: Session, tables: list[PublishedTable]) -> Iterator[Finding]:
    query = """
        SELECT c.oid::regclass::text FROM pg_partition_tree(%s) t JOIN pg_class c ON c.oid = t.relid
        WHERE t.isleaf AND (c.relkind <> 'r' OR c.relpersistence <> 'p') AND c.relkind <> 'p'
    """
    for table in tables:
        if not table.partitioned:
            continue
        with translated("reading the partitions", table.schema.name):
            left_out = [n for (n,) in session.execute(query, [table.schema.id.oid])]
        if left_out:
            yield warning(
                f"table {table.schema.name}",
                f"foreign and unlogged partitions are not replicated: {listed(left_out)}",
                "-- ALTER TABLE ... SET LOGGED, or detach them",
            )


def _unknown_names(config: PipelineConfig, tables: list[PublishedTable]) -> Iterator[Finding]:
    known = {str(t.schema.name): {c.name for c in t.schema.columns} for t in tables}
    for table, columns in config.column_types.items():
        unknown = [c for c in columns if c not in known.get(table, ())]
        if unknown:
            yield warning(
                "column_types",
                f"names {listed(f'{table}.{column}' for column in unknown)},"
                " which the publication does not send",
                "-- mend the name in the configuration (schema.table, then column)",
            )
    strangers = [table for table in config.table_sync_copy.tables if table not in known]
    if strangers:
        yield warning(
            "table_sync_copy",
            f"names {listed(strangers)}, not in the publication",
            "-- mend the name in the configuration (schema.table)",
        )
