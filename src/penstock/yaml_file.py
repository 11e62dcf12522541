"""A YAML file of settings: read as YAML first, then completed from the environment.

`${NAME}` in a value stands for an environment variable, whose text is taken as it is:
a password may have any characters. Errors tell the line and not what stands there,
which may be a secret.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import ErrorKind, PenstockError

_START = "`penstock init` writes a commented configuration to start from"
_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# YAML ends a text at a brace inside of {...}. So it is shown stand-ins without braces, as
# long as what they stand for, which leaves every column where it is.
_STAND_IN = "\ue000\ue000{}\ue001"
_STOOD_IN = re.compile("\ue000\ue000([A-Za-z0-9_]+)\ue001")

_QUOTED = re.compile(r""" ('(?!<)[^']{2,}'|"[^"]{2,}")""")


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in the file, with `${NAME}` replaced; all keys are strings."""
    text = _VARIABLE.sub(lambda match: _STAND_IN.format(match[1]), _read(path))
    try:
        data = yaml.load(text, _Loader)
    except _Refusal as refusal:
        message = f"{path}, {_place(refusal.mark)}: {refusal.problem}"
        raise PenstockError(ErrorKind.CONFIG, message, hint=refusal.hint) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{_place(mark)}: " if mark else ""
        problem = _QUOTED.sub("", getattr(error, "problem", None) or str(error))
        raise PenstockError(
            ErrorKind.CONFIG,
            f"{path} is not valid YAML: {where}{problem}",
            hint="mend that line; YAML wants spaces, not tabs, and `key: value`, with quotes"
            " around a value that begins with a special character",
        ) from None
    if not isinstance(data, dict):
        raise PenstockError(ErrorKind.CONFIG, f"{path} holds no settings", hint=_START)
    return data


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PenstockError(
            ErrorKind.CONFIG, f"cannot read {path}: {error.strerror or error}", hint=_START
        ) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise PenstockError(
            ErrorKind.CONFIG,
            f"{path} is not UTF-8: line {line} has a character of another encoding",
            hint=f"save it as UTF-8, as by: iconv -f latin1 -t utf-8 {path}",
        ) from None


class _Refusal(yaml.YAMLError):
    """What is valid YAML, and still no setting."""

    def __init__(self, mark: yaml.Mark, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.mark, self.problem, self.hint = mark, problem, hint


class _Loader(yaml.SafeLoader):
    """Takes variables from the environment, and nothing but text for a key, and that once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here a mapping still has its own keys alone; what is merged into it may be overruled.
        node = super().compose_mapping_node(anchor)
        places: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            text = self.construct_scalar(key)
            if text in places:
                raise _Refusal(
                    key.start_mark,
                    f"the key {_as_written(key)} stands in {_place(places[text])} already",
                    "keep one of the two",
                )
            places[text] = key.start_mark
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        return _STOOD_IN.sub(lambda match: _variable(match[1], node.start_mark), value)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        for key, _ in node.value:
            if key.tag != _TEXT:
                kind = key.tag.rpartition(":")[2]
                raise _Refusal(
                    key.start_mark,
                    f"YAML takes the key {key.value} for a value of type {kind}, not for a name",
                    f'put it in quotes ("{key.value}") if it is meant;'
                    " `penstock init --stdout` shows every setting",
                )
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            kind = node.tag.rpartition(":")[2]
            raise _Refusal(
                node.start_mark,
                f"this looks like a value of type {kind} and is none",
                "mend the value, or put it in quotes if it is text",
            ) from None


def _variable(name: str, mark: yaml.Mark) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise _Refusal(
            mark,
            f"refers to ${{{name}}}, which is not set in the environment",
            f"export {name}=... before starting penstock",
        ) from None


def _as_written(key: yaml.ScalarNode) -> str:
    return _STOOD_IN.sub(r"${\1}", key.value)


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
