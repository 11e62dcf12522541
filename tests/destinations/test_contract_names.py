"""Everything that a signature of the contract mentions can be imported from one place."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import penstock.destinations
from penstock.destinations import Destination, DestinationContext, SchemaChange

_ELSEWHERE = {"None", "SparkSession", "bool", "dict", "int", "list", "self", "str", "tuple"}


def _signatures(kind: type) -> list[str]:
    annotations = [str(text) for text in inspect.get_annotations(kind).values()]
    for _, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and not function.__name__.startswith("_"):
            annotations += map(str, function.__annotations__.values())
    return annotations


@pytest.mark.parametrize("kind", [Destination, DestinationContext, SchemaChange])
def test_a_signature_mentions_only_public_names(kind: type) -> None:
    mentioned = {name for text in _signatures(kind) for name in re.findall(r"\w+", text)}
    missing = mentioned - _ELSEWHERE - {"ClassVar"} - set(penstock.destinations.__all__)
    assert not missing


def test_the_contracts_load_neither_spark_nor_arrow() -> None:
    program = (
        "import sys, penstock.destinations, penstock.stores\n"
        "print(sorted({'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
