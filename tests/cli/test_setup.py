"""`penstock setup`: the event triggers."""

from __future__ import annotations

from tests.cli.command import Penstock, WriteConfig
from tests.conftest import Database


def test_setting_up_again_and_taking_out(
    penstock: Penstock, write_config: WriteConfig, database: Database
) -> None:
    config = write_config(database.dsn)
    for arguments, told in [
        ([], "event triggers set up"),
        ([], "nothing to do"),
        (["--uninstall"], "event triggers taken out"),
        (["--uninstall"], "event triggers taken out"),
    ]:
        outcome = penstock("setup", config, *arguments)
        assert outcome.code == 0, outcome.stderr
        assert outcome.stdout.startswith(told)


def test_the_sql_that_is_printed_does_it(
    penstock: Penstock, write_config: WriteConfig, database: Database
) -> None:
    config = write_config(database.dsn)
    with database.connect() as connection:
        connection.execute(penstock("setup", config, "--print").stdout.encode())
        assert penstock("setup", config).stdout.startswith("nothing to do")
        connection.execute(penstock("setup", config, "--print", "--uninstall").stdout.encode())
        row = connection.execute("SELECT count(*) FROM pg_event_trigger").fetchone()
        assert row == (0,)


def test_a_plain_owner_makes_the_functions_and_is_told_the_rest(
    penstock: Penstock, write_config: WriteConfig, database: Database
) -> None:
    role = f"{database.name}_owner"
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
        connection.execute(f"ALTER DATABASE {database.name} OWNER TO {role}".encode())
        try:
            config = write_config(f"{database.dsn} user={role} password=x")
            outcome = penstock("setup", config)
            assert outcome.code == 3
            assert outcome.stdout.startswith("functions made")
            assert outcome.errors == [
                f"error: role {role} may not make event triggers in {database.name}"
            ]
            _, _, statements = outcome.stderr.partition("this:\n")
            connection.execute(statements.encode())
            assert penstock("setup", config).stdout.startswith("nothing to do")
            refused = penstock("setup", config, "--uninstall")
            assert refused.code == 3
            assert "may not drop event triggers" in refused.stderr
        finally:
            connection.execute(f"ALTER DATABASE {database.name} OWNER TO CURRENT_USER".encode())
            connection.execute("DROP SCHEMA IF EXISTS penstock CASCADE")
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())
