DROP EVENT TRIGGER IF EXISTS penstock_announce_columns;
DROP EVENT TRIGGER IF EXISTS penstock_announce_rewrite;
DROP FUNCTION IF EXISTS penstock.announce_columns();
DROP FUNCTION IF EXISTS penstock.announce_rewrite();

-- The schema may have a store's tables in it.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_namespace WHERE nspname = 'penstock') AND NOT EXISTS (
        SELECT FROM pg_depend d JOIN pg_namespace n ON n.oid = d.refobjid
        WHERE d.refclassid = 'pg_namespace'::regclass AND n.nspname = 'penstock')
    THEN
        DROP SCHEMA penstock;
    END IF;
END $$;
