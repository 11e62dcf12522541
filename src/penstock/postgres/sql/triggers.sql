-- Event triggers are for superusers to make (or for the provider's own kind of them).

DROP EVENT TRIGGER IF EXISTS penstock_announce_columns;
CREATE EVENT TRIGGER penstock_announce_columns ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE') EXECUTE FUNCTION penstock.announce_columns();

DROP EVENT TRIGGER IF EXISTS penstock_announce_rewrite;
CREATE EVENT TRIGGER penstock_announce_rewrite ON table_rewrite
    EXECUTE FUNCTION penstock.announce_rewrite();

-- Also in a session that says it is a replica's (session_replication_role): what it does to
-- tables is in the WAL like anything else.
ALTER EVENT TRIGGER penstock_announce_columns ENABLE ALWAYS;
ALTER EVENT TRIGGER penstock_announce_rewrite ENABLE ALWAYS;

COMMENT ON EVENT TRIGGER penstock_announce_columns IS 'penstock {version}';
