-- Event triggers are for superusers to make (or for the provider's own kind of them).

DROP EVENT TRIGGER IF EXISTS penstock_announce_columns;
CREATE EVENT TRIGGER penstock_announce_columns ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION penstock.announce_columns();

DROP EVENT TRIGGER IF EXISTS penstock_announce_rewrite;
CREATE EVENT TRIGGER penstock_announce_rewrite ON table_rewrite
    EXECUTE FUNCTION penstock.announce_rewrite();

COMMENT ON EVENT TRIGGER penstock_announce_columns IS 'penstock {version}';
