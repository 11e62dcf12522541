"""What the configuration refuses."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from penstock import config
from penstock.config import (
    FileConfig,
    JournalConfig,
    PgConnection,
    PipelineConfig,
    TableSyncCopy,
    load_config,
)
from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline.receiver_process import revealed
from penstock.yaml_file import read_yaml

MINIMAL = "id: shop\npublication_name: p\npg_connection: {host: h}\n"


def refusal(tmp_path: Path, text: str) -> PenstockError:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(PenstockError) as caught:
        load_config(path)
    assert caught.value.kind is ErrorKind.CONFIG
    return caught.value


def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    error = refusal(tmp_path, MINIMAL + "batch: {max_fil_ms: 5}\n")
    assert "unknown key batch.max_fil_ms: did you mean max_fill_ms?" in error.message
    error = refusal(tmp_path, MINIMAL.replace("host: h", "pasword: hunter2"))
    assert "unknown key pg_connection.pasword: did you mean password?" in error.message
    assert "hunter2" not in str(error)


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    error = refusal(tmp_path, "publication_name: p\nmax_apply_workers: 0\n")
    for name in ("id is missing", "pg_connection is missing", "max_apply_workers"):
        assert name in error.message
    error = refusal(tmp_path, MINIMAL + "journal: {max_byte: 1}\nbatch: {max_fill_ms: x}\n")
    assert "c.yaml: batch.max_fill_ms: " in error.message
    assert "; unknown key journal.max_byte: did you mean max_bytes?" in error.message


def refused(model: Callable[..., object], **settings: Any) -> str:
    """What Python is told."""
    with pytest.raises(PenstockError) as caught:
        model(**settings)
    assert caught.value.kind is ErrorKind.CONFIG
    assert caught.value.hint
    return caught.value.message


MODELS = [
    *(FileConfig, PipelineConfig, PgConnection, JournalConfig, TableSyncCopy, config.BatchConfig),
    *(config.BackpressureConfig, config.SparkConfig),
]


@pytest.mark.parametrize("model", MODELS)
def test_python_is_told_what_a_file_is(model: type[FileConfig]) -> None:
    known = next(iter(model.model_fields))
    message = refused(model, **{f"{known}x": "hunter2"})
    assert message.startswith(f"{model.__name__}: ")
    assert f"unknown key {known}x: did you mean {known}?" in message
    assert "hunter2" not in message


def test_python_is_told_every_problem_at_once() -> None:
    message = refused(PipelineConfig, id="A", max_aply_workers=2, journal={"max_byte": 1})
    for problem in (
        "id: it becomes a part of the slot's name: 1 to 54 lower-case letters, digits and _",
        "publication_name is missing",
        "unknown key max_aply_workers: did you mean max_apply_workers?",
        "unknown key journal.max_byte: did you mean max_bytes?",
    ):
        assert problem in message
    message = refused(JournalConfig, max_bytes=1000, max_table_bytes=1000)
    assert message.startswith("JournalConfig: max_table_bytes (1000) must be smaller")


@pytest.mark.parametrize("location", ["/data/[x]", "/data/*", "s3://bucket/journal"])
def test_a_journal_that_spark_would_misread_is_refused(tmp_path: Path, location: str) -> None:
    error = refusal(tmp_path, MINIMAL + f"journal: {{location: '{location}'}}\n")
    assert "journal.location" in error.message


@pytest.mark.parametrize("journal", [{}, {"location": "./j"}, {"location": "file://j"}])
def test_a_relative_journal_stays_where_the_configuration_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = PipelineConfig.model_validate(
        {"id": "x", "publication_name": "p", "pg_connection": {}}
        | ({"journal": journal} if journal else {})
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert made.journal_path == tmp_path / ("j" if journal else "penstock-journal")
    assert made.model_copy(update={"id": "y"}).journal_path == made.journal_path
    handed_over = PipelineConfig.model_validate_json(json.dumps(revealed(made)))
    assert handed_over.journal_path == made.journal_path


def test_a_journal_in_the_home_of_nobody_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, MINIMAL + "journal: {location: ~penstock-nobody/x}\n")
    assert "journal.location: this leads to no directory" in error.message


def test_one_table_may_not_hold_the_whole_journal(tmp_path: Path) -> None:
    assert JournalConfig(max_bytes=1000).max_table_bytes == 250
    assert JournalConfig().max_table_bytes == 4 * 2**30
    error = refusal(tmp_path, MINIMAL + "journal: {max_bytes: 1000, max_table_bytes: 1000}\n")
    assert "journal: max_table_bytes (1000) must be smaller than max_bytes" in error.message


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("some", "table_sync_copy.mode: "),
        ("only", "table_sync_copy: mode only needs tables"),
        ("{mode: except, tables: []}", "table_sync_copy: mode except needs tables"),
        ("{tables: [public.a]}", "table_sync_copy: tables need a mode: only or except"),
        ("{mode: all, tables: [public.a]}", "table_sync_copy: mode all goes without tables"),
        ("{mode: none, tables: [public.a]}", "table_sync_copy: mode none goes without tables"),
        ("{mode: only, tables: [public.a, b]}", "tables.1: b has no schema: write schema.table"),
    ],
)
def test_tables_to_copy_that_mean_nothing_are_refused(
    tmp_path: Path, given: str, problem: str
) -> None:
    assert problem in refusal(tmp_path, MINIMAL + f"table_sync_copy: {given}\n").message


def test_one_word_says_which_tables_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for word in ("all", "none"):
        path.write_text(MINIMAL + f"table_sync_copy: {word}\n")
        assert load_config(path).table_sync_copy == TableSyncCopy(mode=word)
    some = TableSyncCopy(mode="only", tables=('odd.na"me.d',))
    assert some.includes('odd.na"me.d')
    assert not some.includes("public.orders")


def test_a_column_of_a_table_without_schema_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, MINIMAL + "column_types: {orders: {note: string}}\n")
    assert "column_types.orders: orders has no schema: write schema.table" in error.message


def test_every_parameter_of_libpq_is_known() -> None:
    options = psycopg.pq.Conninfo.get_defaults()
    given: dict[str, str] = {o.keyword.decode(): "1" for o in options}
    assert {k: str(v) for k, v in PgConnection(**given).parameters().items()} == given
    secrets = {o.keyword.decode() for o in options if o.dispchar == b"*"}
    for secret in secrets | {"scram_client_key", "scram_server_key"}:
        assert "hunter2" not in repr(PgConnection(**{secret: "hunter2"}))


def test_a_parameter_may_be_a_number_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        MINIMAL.replace(
            "host: h",
            "host: 'a,b', port: '5432,5433', sslsni: 0, min_protocol_version: 3.2",
        )
    )
    found = load_config(path).pg_connection.parameters()
    assert (found["port"], found["sslsni"]) == ("5432,5433", 0)
    assert found["min_protocol_version"] == "3.2"


@pytest.mark.parametrize("port", ["hunter2", "5432,hunter2", "", 5.5, [5432]])
def test_a_port_that_is_none_is_refused(port: object) -> None:
    message = refused(PgConnection, port=port)
    assert message.startswith("PgConnection: port: write a number, or with several hosts")
    assert "hunter2" not in message


def test_a_uri_may_stand_alone(tmp_path: Path) -> None:
    uri = "postgresql://penstock:hunter2@h:5432/shop"
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL.replace("{host: h}", uri))
    assert load_config(path).pg_connection == PgConnection(uri=uri)
    settings: dict[str, Any] = {"id": "x", "publication_name": "p", "pg_connection": uri}
    assert PipelineConfig(**settings).pg_connection.parameters()["uri"] == uri
    assert "hunter2" not in refused(PipelineConfig, **settings | {"id": "X"})


def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, MINIMAL + "store: {url: '${PENSTOCK_TEST_NOT_SET}'}\n")
    assert "line 4, column 14: refers to ${PENSTOCK_TEST_NOT_SET}" in error.message


PASSWORDS = [
    *("*hunter2", "!hunter2", "&hunter2", "@hunter2", "%hunter2", "|", ">", "{", "[x", "- x"),
    *("hunter #2", "a: b", "null", "~", "yes", "123456", "0123", "1e3", "2020-13-45", "2020-01-01"),
    *("it's", 'say "so"', "back\\slash\\n", " blanks ", "${HOME}", "two\nlines", "", "ü"),
]


@pytest.mark.parametrize("form", ["${%s}", "'${%s}'", '"${%s}"'])
@pytest.mark.parametrize("password", PASSWORDS)
def test_a_variable_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str, form: str
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST", password)
    path = tmp_path / "c.yaml"
    value = form % "PENSTOCK_TEST"
    for text in (f"{{host: h, password: {value}}}", f"\n  host: h\n  password: {value}\n"):
        path.write_text(MINIMAL.replace("{host: h}", text))
        given = load_config(path).pg_connection.password
        assert given is not None
        assert given.get_secret_value() == password


def test_variables_fill_numbers_switches_keys_and_parts_of_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PORT": "5433", "YES": "true", "RATIO": "0.5", "NAME": "orders"}.items():
        monkeypatch.setenv(f"PENSTOCK_TEST_{name}", value)
    path = tmp_path / "c.yaml"
    path.write_text(
        MINIMAL.replace("{host: h}", "{port: ${PENSTOCK_TEST_PORT}}")
        + "failover: ${PENSTOCK_TEST_YES}\n"
        + "batch: {memory_budget_ratio: ${PENSTOCK_TEST_RATIO}}\n"
        + "store: {url: sqlite:///${PENSTOCK_TEST_NAME}-${PENSTOCK_TEST_PORT}.db}\n"
        + "column_types: {'public.${PENSTOCK_TEST_NAME}': {note: string}}\n"
    )
    config = load_config(path)
    assert config.pg_connection.port == 5433
    assert config.failover is True
    assert config.batch.memory_budget_ratio == 0.5
    assert config.store.settings == {"url": "sqlite:///orders-5433.db"}
    assert config.column_types == {"public.orders": {"note": "string"}}


def test_a_variable_in_a_comment_need_not_be_set(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL + "# password: ${PENSTOCK_TEST_NOT_SET}\n")
    assert load_config(path).id == "shop"


def test_a_variable_that_does_not_fit_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST", "hunter2")
    error = refusal(tmp_path, MINIMAL.replace("host: h", "port: ${PENSTOCK_TEST}"))
    assert "pg_connection.port" in error.message
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("value", ["*hunter2", "!hunter2", "!hunter2!x", "!!int hunter2"])
def test_what_yaml_cannot_read_is_not_shown(tmp_path: Path, value: str) -> None:
    error = refusal(tmp_path, MINIMAL.replace("host: h", f"password: {value}"))
    assert "line 3, column" in error.message
    assert "hunter2" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("text", "place", "key"),
    [
        ("on: x\n", "line 4, column 1", "on"),
        ("1: x\n", "line 4, column 1", "1"),
        ("batch: {off: x}\n", "line 4, column 9", "off"),
        (
            "column_types: {public.orders: {2020-01-01: string}}\n",
            "line 4, column 32",
            "2020-01-01",
        ),
    ],
)
def test_a_key_that_is_no_text_is_named(tmp_path: Path, text: str, place: str, key: str) -> None:
    error = refusal(tmp_path, MINIMAL + text)
    assert f"c.yaml, {place}: YAML takes the key {key} for" in error.message
    assert f'"{key}"' in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "place", "key", "first"),
    [
        ("batch: {}\nid: shop\n", "line 5, column 1", "id", "line 1, column 1"),
        ("batch:\n  max_bytes: 1\n  'max_bytes': 2\n", "line 6, column 3", "max_bytes", "line 5"),
        ("spark: {config: {a: x, b: y, a: z}}\n", "line 4, column 30", "a", "line 4, column 18"),
        ("column_types: {a.b: {}, ${PENSTOCK_TEST}: {}}\n", "line 4", "${PENSTOCK_TEST}", "line 4"),
        ("x: [&x {<<: {a: 1}, a: 2, a: 3}]\ny: {<<: *x}\n", "line 4, column 27", "a", "line 4"),
    ],
)
def test_a_key_that_is_there_twice_is_named_with_both_places(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    place: str,
    key: str,
    first: str,
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST", "a.b")
    error = refusal(tmp_path, MINIMAL + text)
    assert f"c.yaml, {place}" in error.message
    assert f": the key {key} stands in {first}" in error.message


def test_a_key_may_overrule_what_is_merged(tmp_path: Path) -> None:
    """Also where a mapping that is not yet read itself is merged into one that stands higher."""
    path = tmp_path / "c.yaml"
    path.write_text(
        MINIMAL
        + "column_types:\n"
        + "  s.a: &a {x: string, y: string}\n"
        + "  s.b: &b {<<: *a, y: double}\n"
        + "  s.c: {<<: *a, <<: *b, x: double}\n"
        + "spark: {config: {<<: {a: x, b: x}, b: y}}\n"
    )
    loaded = load_config(path)
    assert loaded.column_types == {
        "s.a": {"x": "string", "y": "string"},
        "s.b": {"x": "string", "y": "double"},
        "s.c": {"x": "double", "y": "double"},
    }
    assert loaded.spark.config == {"a": "x", "b": "y"}
    deep = "a: {b: {c: &c {<<: {d: 1}, d: 2}}}\ne: {<<: *c, d: 3}\n"
    path.write_text(deep)
    assert read_yaml(path) == {"a": {"b": {"c": {"d": 2}}}, "e": {"d": 3}}


@pytest.mark.parametrize("value", ["2020-13-45", "0b_", "!!bool maybe", "!!timestamp soon"])
def test_a_value_that_is_not_what_it_looks_like_is_told(tmp_path: Path, value: str) -> None:
    error = refusal(tmp_path, MINIMAL + f"schema_change_policy: {value}\n")
    assert "c.yaml, line 4, column 23: this looks like a value of type" in error.message
    assert "quotes" in (error.hint or "")


def test_another_encoding_is_told(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(MINIMAL.encode() + "# Größe\n".encode("latin-1"))
    with pytest.raises(PenstockError, match=r"c\.yaml is not UTF-8: line 4") as caught:
        load_config(path)
    assert caught.value.kind is ErrorKind.CONFIG
    assert "iconv" in (caught.value.hint or "")


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL.replace("{host: h}", "{host: h, password: secret-word}"))
    assert "secret-word" not in repr(load_config(path))


def test_a_secret_prints_as_three_stars() -> None:
    given = PgConnection(host="h", password="open sesame")
    assert str(given.password) == "***"
    assert repr(given) == "PgConnection(host='h', password=Secret('***'), connect_timeout=10)"
    assert str(given) == "host='h' password=Secret('***') connect_timeout=10"
    assert '"password":"***"' in given.model_dump_json()
    assert "sesame" not in repr(config.StoreConfig(url="postgresql://u:sesame@h/db"))


def test_a_secret_is_still_pydantics() -> None:
    given = PgConnection(host="h", password="open sesame")
    plain = SecretStr("open sesame")
    assert PgConnection(host="h", password=plain) == given == pickle.loads(pickle.dumps(given))
    assert given.password == plain
    assert plain == given.password
    assert given.password != SecretStr("open barley")
    assert hash(given.password) == hash(plain)
    assert given.parameters()["password"] == "open sesame"


@pytest.mark.parametrize(("name", "value"), [("pasword", "hunter2"), ("password", 123456)])
def test_a_wrong_argument_is_named_without_its_value(name: str, value: object) -> None:
    message = refused(PgConnection, **{name: value})
    assert name in message
    assert str(value) not in message


def test_an_id_may_be_a_number(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL.replace("id: shop", "id: 42"))
    assert load_config(path).slot_name == "penstock_42"
    assert "id: " in refusal(tmp_path, MINIMAL.replace("id: shop", "id: true")).message
    assert "id: it becomes" in refusal(tmp_path, MINIMAL.replace("id: shop", "id: 4.2")).message


def test_memory_backpressure_may_be_off(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL + "memory_backpressure: null\n")
    off = load_config(path)
    assert off.memory_backpressure is None
    assert revealed(off)["memory_backpressure"] is None
    error = refusal(tmp_path, MINIMAL + "memory_backpressure: {resme: 0.5}\n")
    assert "unknown key memory_backpressure.resme: did you mean resume?" in error.message
