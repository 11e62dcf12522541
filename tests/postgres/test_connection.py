"""Sessions: what is pinned, and what each failure is called."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from penstock.config import PgConnection
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.connection import (
    SESSION_SETTINGS,
    Session,
    connect,
    current_flush_lsn,
    current_wal_lsn,
    in_recovery,
    server_version,
    system_identifier,
    translate,
    translated,
)
from penstock.schema import TableName
from penstock.testing import EmbeddedPostgres
from penstock.testing.installation import installed_versions

SAMPLE = """
    SELECT timestamptz '2024-02-03 04:05:06.789+00', interval '1 day 02:03:04', 0.1::float4,
           '\\x00ff'::bytea, 1.5::money, date '2024-02-03', 'pg_class'::regclass
"""
EXPECTED = (
    *("2024-02-03 04:05:06.789+00", "1 day 02:03:04", "0.1", "\\x00ff", "$1.50", "2024-02-03"),
    "pg_class",
)
CONTRARY = {
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "'iso_8601'",
    "TimeZone": "'America/New_York'",
    "extra_float_digits": "-15",
    "bytea_output": "'escape'",
    "client_encoding": "'LATIN1'",
    "quote_all_identifiers": "on",
    "search_path": "'nowhere'",
    "row_security": "on",
    "statement_timeout": "'1ms'",
    "lock_timeout": "'1ms'",
    "idle_in_transaction_session_timeout": "'1ms'",
}
LATER = {
    "idle_session_timeout": 140000,
    "transaction_timeout": 170000,
}


def sample(session: Session) -> tuple[str, ...]:
    """As the server prints them: simple query protocol, text."""
    result = session.pgconn.exec_(SAMPLE.encode())
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    values = [result.get_value(0, i) for i in range(result.nfields)]
    return tuple(value.decode() for value in values if value is not None)


def setting(session: Session, name: str) -> str:
    result = session.pgconn.exec_(f"SHOW {name}".encode())
    value = result.get_value(0, 0)
    assert value is not None
    return value.decode()


@pytest.mark.parametrize("replication", [False, True])
def test_a_roles_own_settings_do_not_change_the_text(
    session: Session, someone: PgConnection, role: str, replication: bool
) -> None:
    session.execute(f'ALTER ROLE "{role}" REPLICATION')
    for name, value in CONTRARY.items():
        session.execute(f'ALTER ROLE "{role}" SET {name} = {value}')
    later = [name for name, since in LATER.items() if server_version(session) >= since]
    for name in later:
        session.execute(f"ALTER ROLE \"{role}\" SET {name} = '1h'")
    with connect(someone, "test", replication=replication) as theirs:
        shown = sample(theirs)
        assert shown[:4] == EXPECTED[:4]
        assert shown[5:] == EXPECTED[5:]
        assert setting(theirs, "client_encoding") == "UTF8"
        for name, value in SESSION_SETTINGS.items():
            assert setting(theirs, name).replace(" ", "") == value, name
        for name in later:
            assert setting(theirs, name) == "0", name


def test_the_environment_does_not_change_the_text(
    source: PgConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    monkeypatch.setenv("PGOPTIONS", "-c bytea_output=escape -c work_mem=7MB")
    for replication in (False, True):
        with connect(source, "test", replication=replication) as session:
            assert sample(session) == EXPECTED
            assert setting(session, "work_mem") == "7MB", "what we do not pin is the user's"


def test_money_is_printed_in_the_c_locale(source: PgConnection) -> None:
    with connect(source, "test") as session:
        assert sample(session)[4] == EXPECTED[4]
        assert setting(session, "lc_monetary") == "C"


def test_options_of_the_user_are_kept_and_cannot_unpin(source: PgConnection) -> None:
    wanted = source.model_copy(update={"options": "-c work_mem=9MB -c DateStyle=German"})
    with connect(wanted, "test") as session:
        assert setting(session, "work_mem") == "9MB"
        assert sample(session) == EXPECTED


def test_the_session_is_named_for_its_purpose(source: PgConnection) -> None:
    with connect(source, "copy_of_things") as session:
        assert setting(session, "application_name") == "penstock_copy_of_things"
        assert session.autocommit
    with connect(source, "test", autocommit=False) as session:
        assert not session.autocommit
        assert session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_uri_is_combined_with_parameters(server: EmbeddedPostgres) -> None:
    uri = f"postgresql:///template1?host={server.host}&port={server.port}&connect_timeout=300"
    with connect(PgConnection(uri=uri, dbname="postgres", user="postgres"), "test") as session:
        assert (session.info.dbname, session.info.user) == ("postgres", "postgres")
        assert session.info.get_parameters()["connect_timeout"] == "300"
    with connect(PgConnection(uri=uri, user="postgres", connect_timeout=700), "test") as session:
        assert session.info.dbname == "template1"
        assert session.info.get_parameters()["connect_timeout"] == "700"


def test_what_our_sessions_must_have_is_not_the_users_to_say(server: EmbeddedPostgres) -> None:
    theirs = {"application_name": "shop", "client_encoding": "LATIN1", "replication": "database"}
    words = " ".join(f"{name}={value}" for name, value in theirs.items())
    for given in (
        PgConnection(uri=f"{server.dsn()} {words}"),
        PgConnection(uri=server.dsn(), fallback_application_name="shop", **theirs),
    ):
        with connect(given, "test") as session:
            assert session.execute("SELECT %s::text", ["ü"]).fetchone() == ("ü",)
            assert setting(session, "application_name") == "penstock_test"
            assert setting(session, "client_encoding") == "UTF8"


def test_parameters_reach_libpq_as_those_of_a_uri_do(server: EmbeddedPostgres) -> None:
    def found(given: PgConnection) -> dict[str, str]:
        with connect(given, "test") as session:
            return session.info.get_parameters()

    uri = f"postgresql://postgres@/postgres?host={server.host}&port={server.port}"
    assert found(PgConnection(uri=uri))["keepalives_idle"] == "30"
    more = {"target_session_attrs": "read-write", "tcp_user_timeout": 9000}
    given = found(PgConnection(host=server.host, port=server.port, user="postgres", **more))
    in_uri = found(PgConnection(uri=f"{uri}&target_session_attrs=read-write&tcp_user_timeout=9000"))
    for told in (given, in_uri):
        assert told["target_session_attrs"] == "read-write"
        assert told["tcp_user_timeout"] == "9000"
        assert "keepalives_idle" not in told, "none of our probes beside one of the user's"


def test_each_host_may_have_a_port_of_its_own(server: EmbeddedPostgres, tmp_path: Path) -> None:
    hosts, ports = f"{tmp_path},{server.host}", f"1,{server.port}"
    with connect(PgConnection(host=hosts, port=ports, user="postgres"), "test") as session:
        assert session.info.port == server.port


def test_a_replication_session_speaks_the_replication_protocol(source: PgConnection) -> None:
    with connect(source, "test", replication=True) as session:
        result = session.pgconn.exec_(b"IDENTIFY_SYSTEM")
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK
        identifier = result.get_value(0, 0)
    with connect(source, "test") as session:
        assert system_identifier(session).encode() == identifier


def test_positions_and_versions(session: Session) -> None:
    assert server_version(session) // 10000 in installed_versions()
    assert not in_recovery(session)
    before = current_wal_lsn(session)
    session.execute("CREATE TABLE public.moved (a int)")
    assert current_wal_lsn(session) > before
    assert before < current_flush_lsn(session) <= current_wal_lsn(session)


# Refused


def refusal(connection: PgConnection, **parameters: bool) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        connect(connection, "test", **parameters).close()
    assert caught.value.hint, "a refusal says what to do"
    return caught.value


def test_a_port_where_nobody_listens_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    error = refusal(PgConnection(host="127.0.0.1", port=port, password="open sesame"))
    assert error.kind is ErrorKind.SOURCE_CONNECTION
    assert f"127.0.0.1 port {port}" in error.message
    assert "refused" in error.message
    assert "open sesame" not in str(error)


def test_a_host_that_does_not_exist_is_named() -> None:
    error = refusal(PgConnection(host="nowhere.invalid", dbname="shop"))
    assert error.kind is ErrorKind.SOURCE_CONNECTION
    assert "nowhere.invalid port 5432" in error.message


def test_a_socket_directory_without_a_server_is_named(tmp_path: Path) -> None:
    error = refusal(PgConnection(host=str(tmp_path), dbname="shop"))
    assert error.kind is ErrorKind.SOURCE_CONNECTION
    assert str(tmp_path) in error.message


def test_a_server_that_does_not_answer_times_out() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        error = refusal(PgConnection(host="127.0.0.1", port=port, connect_timeout=2))
    assert error.kind is ErrorKind.SOURCE_CONNECTION
    assert f"127.0.0.1 port {port}" in error.message
    assert "no answer in time" in error.message


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://shop:open%sesame@127.0.0.1:1/shop",
        "postgresql:/shop:open%sesame@127.0.0.1:1/shop",
        "postgresql://shop:open@sesame@127.0.0.1:1/shop",
        "postgres://shop:open@sesame,@127.0.0.1:1/shop",
        "postgresql://shop:1@127.0.0.1:sesame@127.0.0.1:1/shop",
        "postgresql://shop:sesame/open@127.0.0.1:1/shop",
        "postgresql://127.0.0.1:1/sesame@127.0.0.1:1/shop",
        "postgresql://127.0.0.1:1/sesame@127.0.0.1",
        "postgresql://shop:/sesame@127.0.0.1:1/shop",
        "postgresql://shop:1@127.0.0.1:1/sesame@127.0.0.1:1/shop",
        "postgresql://shop:open@sesame/1@127.0.0.1",
    ],
)
def test_a_malformed_uri_does_not_show_its_password(uri: str) -> None:
    error = refusal(PgConnection(uri=uri))
    assert error.kind is ErrorKind.CONFIG
    assert "percent-encoded" in str(error.hint)
    assert "sesame" not in f"{error} {error.hint}"
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("uri", "database"),
    [
        ("postgresql://{user}@{host}:{port}/till%40shop", "till@shop"),
        ("postgresql://{user}:a%40b%2Fc@{host}:{port}/till", "till"),
        ("postgresql://{user}@{host}:{port},{host}:/till?password=a@b", "till"),
        ("dbname=till@shop user={user} host={host} port={port}", "till@shop"),
    ],
)
def test_what_a_uri_may_say_is_not_taken_for_a_password(
    guarded_server: EmbeddedPostgres, uri: str, database: str
) -> None:
    port = guarded_server.port
    error = refusal(PgConnection(uri=uri.format(user="postgres", host="127.0.0.1", port=port)))
    assert error.kind is ErrorKind.SOURCE_CONFIGURATION
    assert f'no database "{database}"' in error.message


def test_a_database_that_does_not_exist(source: PgConnection) -> None:
    error = refusal(source.model_copy(update={"dbname": "no_such_shop"}))
    assert error.kind is ErrorKind.SOURCE_CONFIGURATION
    assert "no_such_shop" in error.message


def test_a_database_named_after_a_role_that_does_not_exist(source: PgConnection) -> None:
    error = refusal(source.model_copy(update={"dbname": "role of nobody"}))
    assert error.kind is ErrorKind.SOURCE_CONFIGURATION


def test_a_role_that_does_not_exist(source: PgConnection) -> None:
    error = refusal(source.model_copy(update={"user": "no_such_database_user"}))
    assert error.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "no_such_database_user" in error.message


def test_a_role_that_may_not_log_in(session: Session, someone: PgConnection, role: str) -> None:
    session.execute(f'ALTER ROLE "{role}" NOLOGIN')
    assert refusal(someone).kind is ErrorKind.SOURCE_AUTHENTICATION


def test_a_role_that_may_not_replicate(someone: PgConnection, role: str) -> None:
    error = refusal(someone, replication=True)
    assert error.kind is ErrorKind.SOURCE_PRIVILEGE
    assert error.hint == f'ALTER ROLE "{role}" REPLICATION;'


def test_a_role_that_may_not_connect_to_the_database(
    session: Session, someone: PgConnection
) -> None:
    session.execute(f"REVOKE CONNECT ON DATABASE {session.info.dbname} FROM PUBLIC")
    error = refusal(someone)
    assert error.kind is ErrorKind.SOURCE_PRIVILEGE
    assert "GRANT CONNECT" in str(error.hint)


def test_too_many_connections_pass_by_themselves(
    session: Session, someone: PgConnection, role: str
) -> None:
    session.execute(f'ALTER ROLE "{role}" CONNECTION LIMIT 0')
    error = refusal(someone)
    assert error.kind is ErrorKind.SOURCE_CONNECTION
    assert error.kind.retryable


def test_tls_where_there_is_none(guarded_server: EmbeddedPostgres) -> None:
    given = PgConnection(host="127.0.0.1", port=guarded_server.port, sslmode="require")
    assert refusal(given).kind is ErrorKind.SOURCE_CONFIGURATION


@pytest.mark.parametrize("sslmode", ["require", "prefer"])
def test_a_connection_that_is_cut_while_tls_begins_passes_by_itself(sslmode: str) -> None:
    """As by a load balancer whose server is away."""
    with socket.create_server(("127.0.0.1", 0)) as balancer:

        def cut_all() -> None:
            with suppress(OSError):
                while True:
                    with balancer.accept()[0] as client:
                        client.recv(8)
                        client.sendall(b"S")
                        client.recv(65536)

        thread = threading.Thread(target=cut_all)
        thread.start()
        try:
            port = balancer.getsockname()[1]
            error = refusal(PgConnection(host="127.0.0.1", port=port, sslmode=sslmode))
        finally:
            balancer.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert error.kind is ErrorKind.SOURCE_CONNECTION
    assert "was cut" in error.message


def test_a_setting_that_libpq_does_not_know(source: PgConnection) -> None:
    error = refusal(source.model_copy(update={"sslmode": "sometimes"}))
    assert error.kind in (ErrorKind.CONFIG, ErrorKind.SOURCE_CONFIGURATION)
    assert "sometimes" in error.message


# Passwords need a server that asks for them.


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("guarded"), listen_tcp=True) as server:
        hba = server.data / "pg_hba.conf"
        rule = "host all guarded 127.0.0.1/32 scram-sha-256\nhost all shut 127.0.0.1/32 reject\n"
        hba.write_text(rule + hba.read_text())
        with server.connect() as session:
            session.execute("CREATE ROLE guarded LOGIN PASSWORD 'open sesame'")
            session.execute("SELECT pg_reload_conf()")
            # The reload has happened when the rule is in force.
            rules = "SELECT count(*) FROM pg_hba_file_rules WHERE error IS NULL"
            assert session.execute(rules).fetchone() is not None
        yield server


def guarded(server: EmbeddedPostgres, password: str | None, user: str = "guarded") -> PgConnection:
    return PgConnection(
        host="127.0.0.1", port=server.port, user=user, dbname="postgres", password=password
    )


def test_the_right_password_opens(guarded_server: EmbeddedPostgres) -> None:
    with connect(guarded(guarded_server, "open sesame"), "test") as session:
        assert session.info.user == "guarded"


@pytest.mark.parametrize("password", ["open barley", None])
def test_a_wrong_or_missing_password(
    guarded_server: EmbeddedPostgres, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    error = refusal(guarded(guarded_server, password))
    assert error.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "guarded" in error.message
    assert f"127.0.0.1 port {guarded_server.port}" in error.message
    assert "barley" not in str(error)


def test_an_address_that_is_not_let_in(guarded_server: EmbeddedPostgres) -> None:
    error = refusal(guarded(guarded_server, "x", user="shut"))
    assert error.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "pg_hba.conf" in str(error)


def test_a_server_that_is_gone_and_one_that_starts(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path) as server:
        given = PgConnection(uri=server.dsn())
        session = connect(given, "test")
        server.kill()
        with pytest.raises(PenstockError) as caught, translated("counting"):
            session.execute("SELECT 1")
        assert caught.value.kind is ErrorKind.SOURCE_CONNECTION
        assert refusal(given).kind is ErrorKind.SOURCE_CONNECTION


# Failed statements


def failure(session: Session, statement: str) -> PenstockError:
    with pytest.raises(psycopg.Error) as caught:
        session.execute(statement.encode())
    return translate(caught.value, "trying", TableName("public", "things"))


def test_the_failure_says_what_was_done_to_which_table(session: Session) -> None:
    error = failure(session, "SELECT * FROM public.nothing")
    assert error.kind is ErrorKind.SOURCE_SCHEMA
    assert str(error).startswith("public.things: trying failed: relation")
    assert error.hint


def test_the_sqlstate_decides(session: Session) -> None:
    expected = {
        "SELECT nothing FROM pg_class": ErrorKind.SOURCE_SCHEMA,
        "SELECT pg_drop_replication_slot('nothing')": ErrorKind.SOURCE_SLOT,
        "ALTER PUBLICATION nothing ADD TABLE pg_class": ErrorKind.SOURCE_CONFIGURATION,
        "DO $$BEGIN RAISE SQLSTATE '40001'; END$$": ErrorKind.SOURCE_CONNECTION,
        "DO $$BEGIN RAISE SQLSTATE '40P01'; END$$": ErrorKind.SOURCE_CONNECTION,
        "DO $$BEGIN RAISE SQLSTATE '53300'; END$$": ErrorKind.SOURCE_CONNECTION,
        "DO $$BEGIN RAISE SQLSTATE '53400'; END$$": ErrorKind.SOURCE_CONFIGURATION,
        "DO $$BEGIN RAISE SQLSTATE '57P03'; END$$": ErrorKind.SOURCE_CONNECTION,
        "DO $$BEGIN RAISE SQLSTATE '58P01'; END$$": ErrorKind.SOURCE_SLOT,
        "DO $$BEGIN RAISE SQLSTATE '28000'; END$$": ErrorKind.SOURCE_AUTHENTICATION,
        "DO $$BEGIN RAISE SQLSTATE 'XX000'; END$$": ErrorKind.SOURCE_SNAPSHOT,
        "DO $$BEGIN RAISE SQLSTATE '58030'; END$$": ErrorKind.SOURCE_CONNECTION,
        "DO $$BEGIN RAISE SQLSTATE 'XX001'; END$$": ErrorKind.SOURCE_CONFIGURATION,
        "DO $$BEGIN RAISE SQLSTATE 'XX002'; END$$": ErrorKind.SOURCE_CONFIGURATION,
        "SELECT 1 / 0": ErrorKind.DATA_DECODE,
        "SELECT nonsense(": ErrorKind.INTERNAL,
    }
    assert {statement: failure(session, statement).kind for statement in expected} == expected


@pytest.mark.parametrize("state", ["58030", "XX001", "XX002"])
def test_damage_at_the_source_is_looked_for_there(session: Session, state: str) -> None:
    error = failure(session, f"DO $$BEGIN RAISE SQLSTATE '{state}'; END$$")
    assert "the server's log and at its disk" in (error.hint or "")


def test_a_missing_privilege(session: Session, someone: PgConnection) -> None:
    session.execute("CREATE SCHEMA shop CREATE TABLE secrets (a int)")
    with connect(someone, "test") as theirs:
        assert failure(theirs, "SELECT * FROM shop.secrets").kind is ErrorKind.SOURCE_PRIVILEGE


def test_rows_hidden_by_a_policy_are_an_error_and_not_fewer_rows(
    session: Session, someone: PgConnection, role: str
) -> None:
    session.execute(f"""
        CREATE SCHEMA shop CREATE TABLE secrets (a int);
        INSERT INTO shop.secrets VALUES (1);
        ALTER TABLE shop.secrets ENABLE ROW LEVEL SECURITY;
        GRANT USAGE ON SCHEMA shop TO "{role}"; GRANT SELECT ON shop.secrets TO "{role}"
    """)
    with connect(someone, "test") as theirs:
        error = failure(theirs, "COPY shop.secrets TO STDOUT")
    assert error.kind is ErrorKind.SOURCE_PRIVILEGE


def test_a_lock_that_is_not_to_be_had_passes_by_itself(
    session: Session, source: PgConnection
) -> None:
    session.execute("CREATE TABLE public.locked (a int)")
    session.execute("BEGIN; LOCK TABLE public.locked")
    with connect(source, "test") as other:
        other.execute("SET lock_timeout = '1ms'")
        error = failure(other, "SELECT * FROM public.locked")
    assert error.kind.retryable


def test_a_session_ended_by_an_administrator_passes_by_itself(
    session: Session, source: PgConnection
) -> None:
    with connect(source, "test") as other:
        session.execute("SELECT pg_terminate_backend(%s, 5000)", [other.info.backend_pid])
        assert failure(other, "SELECT 1").kind is ErrorKind.SOURCE_CONNECTION
        assert failure(other, "SELECT 1").kind is ErrorKind.SOURCE_CONNECTION


def test_a_slot_that_is_in_use_passes_by_itself(session: Session, source: PgConnection) -> None:
    session.execute("SELECT pg_create_logical_replication_slot('busy_slot', 'pgoutput')")
    with closing(connect(source, "test", replication=True)) as stream:
        begun = stream.pgconn.exec_(
            b"START_REPLICATION SLOT busy_slot LOGICAL 0/0"
            b" (proto_version '1', publication_names 'none')"
        )
        assert begun.status == psycopg.pq.ExecStatus.COPY_BOTH
        error = failure(session, "SELECT pg_drop_replication_slot('busy_slot')")
    assert error.kind.retryable


def test_a_snapshot_that_is_gone(session: Session) -> None:
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    error = failure(session, "SET TRANSACTION SNAPSHOT '00000003-0000001B-1'")
    assert error.kind is ErrorKind.SOURCE_SNAPSHOT
