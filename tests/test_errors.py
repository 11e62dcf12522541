"""Every error names the remedy, and foreign texts in errors are short."""

from __future__ import annotations

import ast
from pathlib import Path

from penstock.errors import cause, named_cause, shorten

SOURCE = Path(__file__).parent.parent / "src" / "penstock"


def test_every_error_has_a_hint() -> None:
    """Except where an error is rebuilt from one that has been raised already."""
    without = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            hints = [each.value for each in node.keywords if each.arg in ("hint", None)]
            missing = not hints or (isinstance(hints[0], ast.Constant) and not hints[0].value)
            if node.func.id == "PenstockError" and missing:
                without.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not without, "\n".join(without)


def test_a_foreign_text_is_cut_to_200_characters() -> None:
    assert shorten("x" * 200) == "x" * 200
    assert shorten("x" * 201) == "x" * 200 + "…"
    assert cause(ValueError("x" * 300 + "\nmore")) == "x" * 200 + "…"


def test_a_foreign_exception_is_one_line() -> None:
    assert cause(ValueError("first\n\tat java")) == "first"
    assert (
        cause(ValueError("An error occurred:\n: told below")) == "An error occurred: : told below"
    )
    assert cause(ValueError()) == named_cause(ValueError()) == "ValueError"
    assert named_cause(KeyError("x")) == "KeyError: 'x'"
