"""Which changes of a column's type leave its values what they were.

`ALTER COLUMN ... TYPE` casts what is there, and may do so without a word: char(5) to
char(10) adds blanks, timestamp(0) rounds, cidr and inet print differently. What is not
known here to keep values is taken for a change of them.
"""

from __future__ import annotations

from penstock.schema import ColumnSchema, ValueKind

_INT2, _INT4, _INT8, _FLOAT4, _FLOAT8 = 21, 23, 20, 700, 701
_DATE, _TIMESTAMP, _TEXT, _VARCHAR = 1082, 1114, 25, 1043

# Also as text.
_INTEGERS = frozenset({(_INT2, _INT4), (_INT2, _INT8), (_INT4, _INT8)})
# As values, of which the text is another.
_WIDER = frozenset({(_INT2, _FLOAT8), (_INT4, _FLOAT8), (_FLOAT4, _FLOAT8), (_DATE, _TIMESTAMP)})
# Where nothing was cast: text that was may have lost blanks.
_TEXTS = frozenset({(_VARCHAR, _TEXT), (_TEXT, _VARCHAR)})


def keeps_values(old: ColumnSchema, new: ColumnSchema, *, recast: bool) -> bool:
    """Whether every value of the one is the same value in the other.

    `recast` says that Postgres cast values in the statement. Where the two differ in
    `type` and not for Postgres (more digits), it is for who keeps them to say.
    """
    if old.type_oid == new.type_oid:
        return old.type_modifier == new.type_modifier or old.type != new.type or not recast
    pair = (old.type_oid, new.type_oid)
    if pair in _TEXTS:
        return not recast
    return pair in _INTEGERS or (pair in _WIDER and old.type.kind is not ValueKind.STRING)
