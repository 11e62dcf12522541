"""What the configuration refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import load_config
from penstock.errors import ErrorKind, PenstockError

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


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    error = refusal(tmp_path, "publication_name: p\nmax_apply_workers: 0\n")
    for name in ("id is missing", "pg_connection is missing", "max_apply_workers"):
        assert name in error.message


@pytest.mark.parametrize("location", ["/data/[x]", "/data/*", "s3://bucket/journal"])
def test_a_journal_that_spark_would_misread_is_refused(tmp_path: Path, location: str) -> None:
    error = refusal(tmp_path, MINIMAL + f"journal: {{location: '{location}'}}\n")
    assert "journal.location" in error.message


def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, MINIMAL + "store: {url: '${PENSTOCK_TEST_NOT_SET}'}\n")
    assert "PENSTOCK_TEST_NOT_SET" in error.message


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL.replace("{host: h}", "{host: h, password: secret-word}"))
    assert "secret-word" not in repr(load_config(path))
