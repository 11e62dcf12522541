-- Tells subscribers of the WAL how a table's columns are after each ALTER TABLE, and each
-- ALTER TYPE of a type that tables are made of.
-- Made and replaced by `penstock setup`; any owner of the database may run this part.

CREATE SCHEMA IF NOT EXISTS penstock;

-- A table that somebody cannot alter any more would be worse than a change that is
-- not announced, so both functions turn their own failures into warnings.

CREATE OR REPLACE FUNCTION penstock.announce_columns() RETURNS event_trigger
LANGUAGE plpgsql
SET search_path = pg_catalog
SET standard_conforming_strings = on
SET DateStyle = 'ISO, MDY'
SET IntervalStyle = 'postgres'
SET TimeZone = 'UTC'
SET extra_float_digits = 3
SET bytea_output = 'hex'
SET lc_monetary = 'C'
AS $function$
DECLARE
    announcement jsonb;
BEGIN
    FOR announcement IN
        WITH RECURSIVE touched(oid) AS (
            SELECT objid FROM pg_event_trigger_ddl_commands() WHERE classid = 'pg_class'::regclass
            UNION
            -- ALTER TYPE ... CASCADE alters the tables that are of the type.
            SELECT typed.oid
            FROM pg_event_trigger_ddl_commands() done
            JOIN pg_class altered ON altered.oid = done.objid
            JOIN pg_class typed ON typed.reloftype = altered.reltype
            WHERE tg_tag = 'ALTER TYPE' AND done.classid = 'pg_class'::regclass
            UNION
            SELECT i.inhrelid FROM touched JOIN pg_inherits i ON i.inhparent = touched.oid)
        SELECT jsonb_build_object(
            'oid', c.oid::bigint,
            'schema', n.nspname,
            'name', c.relname,
            'identity', c.relreplident,
            -- The statement's own text, whole and alone: then it has no USING, and
            -- a column of another type holds the same values, cast.
            'plain', current_query() ~* '^\s*alter\s+table\s'
                AND current_query() !~* '\yusing\y' AND current_query() !~ ';\s*\S',
            'key', (
                SELECT jsonb_agg(k.number ORDER BY k.place)
                FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
                WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
                  AND k.place <= i.indnkeyatts
                  AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident
                           ELSE i.indisprimary END),
            'columns', (
                SELECT jsonb_agg(jsonb_build_object(
                    'number', a.attnum,
                    'name', a.attname,
                    'type_oid', a.atttypid::bigint,
                    'type_modifier', a.atttypmod,
                    'type_name', format_type(a.atttypid, a.atttypmod),
                    -- Of Postgres 18 on, one that is NOT VALID leaves NULLs where they are.
                    'nullable', NOT a.attnotnull OR EXISTS (
                        SELECT FROM pg_constraint
                        WHERE conrelid = c.oid AND contype = 'n' AND conkey[1] = a.attnum
                          AND NOT convalidated),
                    'generated', a.attgenerated <> '',
                    'filled', missing.texts IS NOT NULL,
                    -- What rows from before the column show in it. It comes as an
                    -- array of one; text[] takes it apart where commas part elements.
                    'fill', CASE WHEN cardinality(missing.texts) = 1 AND t.typdelim = ','
                                 THEN (missing.texts[1]::text[])[1] END)
                    ORDER BY a.attnum)
                FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                -- A partitioned table has no rows; its partitions know of theirs.
                CROSS JOIN LATERAL (
                    WITH RECURSIVE holders(oid) AS (
                        SELECT c.oid
                        UNION
                        SELECT i.inhrelid FROM holders JOIN pg_inherits i
                            ON i.inhparent = holders.oid
                        WHERE c.relkind = 'p' AND NOT i.inhdetachpending)
                    SELECT array_agg(DISTINCT h.attmissingval::text) AS texts
                    FROM holders JOIN pg_attribute h
                        ON h.attrelid = holders.oid AND h.attname = a.attname
                    WHERE h.atthasmissing) AS missing
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                  AND a.attgenerated <> 'v')) -- virtual ones are never sent
        FROM touched
        JOIN pg_class c ON c.oid = touched.oid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
    LOOP
        PERFORM pg_logical_emit_message(
            true, 'penstock.ddl', convert_to(announcement::text, 'UTF8'));
    END LOOP;
    -- Decoding places a message at its record's end, which is where the next record
    -- begins: a row that came right after it could overtake it. Nothing overtakes two.
    PERFORM pg_logical_emit_message(true, 'penstock', '');
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not announce the change: %', SQLERRM;
END
$function$;

-- Comes before announce_columns, in the same statement. Only leaves have rows to
-- rewrite; who publishes their root hears of it under the root's name.

CREATE OR REPLACE FUNCTION penstock.announce_rewrite() RETURNS event_trigger
LANGUAGE plpgsql
SET search_path = pg_catalog
AS $function$
BEGIN
    PERFORM pg_logical_emit_message(true, 'penstock.ddl', convert_to(jsonb_build_object(
        'oid', rewritten.oid::bigint,
        'rewrite', pg_event_trigger_table_rewrite_reason())::text, 'UTF8'))
    FROM (
        SELECT pg_event_trigger_table_rewrite_oid()
        UNION
        SELECT relid FROM pg_partition_ancestors(pg_event_trigger_table_rewrite_oid())
    ) AS rewritten(oid);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not announce the rewrite: %', SQLERRM;
END
$function$;
