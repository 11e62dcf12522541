"""Columns as the decoder gets them, made from values or asked of a real Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg

from penstock.postgres.connection import SESSION_SETTINGS
from penstock.postgres.values import Decoded, TextColumn, decode
from penstock.schema import ValueType

UNCHANGED = object()
"""Stands for a TOAST value that the stream left out."""


def text_column(values: Sequence[bytes | object | None]) -> TextColumn:
    """The values between other bytes, in a buffer that nobody may write to."""
    buffer = bytearray(b"7,}")
    starts, lengths = [], []
    for value in values:
        starts.append(len(buffer))
        lengths.append(-1 if value is None else -2 if value is UNCHANGED else len(value))
        if isinstance(value, bytes):
            buffer += value
        buffer += b'9"x'
    return TextColumn(
        np.frombuffer(bytes(buffer), np.uint8),
        np.array(starts, np.int64),
        np.array(lengths, np.int32),
    )


def decoded(values: Sequence[bytes | object | None], type: ValueType) -> Decoded:  # noqa: A002
    """What the decoder makes of these texts, checked for being sound Arrow."""
    result = decode(text_column(values), type)
    result.array.validate(full=True)
    assert len(result.array) == len(values)
    assert all(not result.array[int(place)].is_valid for place in result.bad)
    return result


def pinned(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """The connection, printing values as our sessions do."""
    for name, value in SESSION_SETTINGS.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))
    return connection


def texts(
    connection: psycopg.Connection[Any], query: str, parameters: Sequence[Any] = ()
) -> list[bytes | None]:
    """The first column of the query's result as Postgres prints it."""
    with connection.cursor(binary=False) as cursor:
        cursor.execute(query, parameters)
        result = cursor.pgresult
        assert result is not None
        return [result.get_value(row, 0) for row in range(result.ntuples)]
