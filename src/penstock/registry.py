"""Find the class that a configuration file names, check its settings, and build it.

A file names a destination or a store in one of three ways: by the name of one that comes with
Penstock (`type: delta`), by the name of an entry point of an installed package (groups
`penstock.destinations` and `penstock.stores`), or by a path (`type: package.module:Class`). The
other keys next to `type` are the settings of that class. Nothing else in Penstock lists classes, so
a new one needs no change here.

A class may have a pydantic model as its attribute `Settings`. The keys are then validated by the
model, and the model's fields become the keyword arguments of the class. A class without `Settings`
gets the keys as keyword arguments as they are.

Classes are imported when they are needed: `penstock status` must not wait for Delta.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from penstock.errors import ErrorKind, PenstockError, cause, shorten

_PATH = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True, slots=True)
class Registry:
    """The destinations, or the stores, that a configuration file can name.

    `key` is the key of the file that names one. `group` is the group of entry points in which
    packages offer theirs. `included` has the path of each class that comes with Penstock.
    """

    key: str
    group: str
    included: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return the names that can be given instead of a path."""
        return sorted({*self.included, *(each.name for each in self._offered())})

    def find(self, name: str) -> type[Any]:
        """Return the class that `name` stands for; `name` is what the file has as `type`."""
        if (path := self.included.get(name)) is not None:
            return self._load(name, EntryPoint(name, path, self.group))
        if (offered := next((e for e in self._offered() if e.name == name), None)) is not None:
            return self._load(name, offered)
        if _PATH.fullmatch(name):
            return self._load(name, EntryPoint(name, name, self.group))
        raise PenstockError(
            ErrorKind.CONFIG,
            f"{self.key}.type: there is no {self.key} {shorten(name)}: "
            + _suggestion(name, self.names()),
            hint=f"write one of {', '.join(self.names())}, or package.module:Class for a class of"
            f" your own; an installed package offers one by an entry point in {self.group}",
        )

    def build(self, name: str, settings: Mapping[str, Any]) -> Any:
        """Return an object of the class that `name` stands for, made with `settings`."""
        found = self.find(name)
        model = getattr(found, "Settings", None)
        if isinstance(model, type) and issubclass(model, BaseModel):
            arguments = self._validated(model, settings)
        else:
            arguments = dict(settings)
            self._require_parameters(found, arguments)
        try:
            return found(**arguments)
        except PenstockError:
            raise
        except (TypeError, ValueError) as error:
            raise PenstockError(
                ErrorKind.CONFIG,
                f"{self.key}: {name} refuses its settings: {cause(error)}",
                hint=f"correct the keys of {self.key}; they are the arguments of {found.__name__}",
            ) from error

    def _offered(self) -> Iterable[EntryPoint]:
        return entry_points(group=self.group)

    def _load(self, name: str, entry: EntryPoint) -> type[Any]:
        try:
            module = import_module(entry.module)
        except ImportError as error:
            raise PenstockError(
                ErrorKind.CONFIG,
                f"{self.key}.type: {name} cannot be imported: {cause(error)}",
                hint=f"install the package of {entry.module} in the environment of penstock, or put"
                " its directory on PYTHONPATH",
            ) from error
        found: Any = module
        for attribute in entry.attr.split("."):
            found = getattr(found, attribute, None)
        if not isinstance(found, type):
            classes = [each for each, value in vars(module).items() if isinstance(value, type)]
            raise PenstockError(
                ErrorKind.CONFIG,
                f"{self.key}.type: {entry.module} has no class {entry.attr}: "
                + _suggestion(entry.attr, classes),
                hint="write package.module:Class, with the name of a class in that module",
            )
        return found

    def _validated(self, model: type[BaseModel], settings: Mapping[str, Any]) -> dict[str, Any]:
        known = _keys(model)
        unknown = set(settings) - set(known)
        if model.model_config.get("extra") == "allow":
            unknown = set()
        problems = [self._unknown(key, known) for key in settings if key in unknown]
        try:
            # Unknown keys are named above, in our words, whatever the model does with them.
            validated = model.model_validate({k: settings[k] for k in settings if k not in unknown})
        except ValidationError as error:
            problems += [self._problem(finding) for finding in error.errors(include_input=False)]
        if problems:
            raise self._refusal(problems, known)
        return {name: getattr(validated, name) for name in type(validated).model_fields} | (
            validated.model_extra or {}
        )

    def _require_parameters(self, found: type[Any], arguments: Mapping[str, Any]) -> None:
        parameters = list(inspect.signature(found).parameters.values())
        if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            return
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        known = [each for each in parameters if each.kind in by_name]
        names = [each.name for each in known]
        problems = [self._unknown(key, names) for key in arguments if key not in names]
        problems += [
            f"{self.key}.{each.name} is missing"
            for each in known
            if each.default is inspect.Parameter.empty and each.name not in arguments
        ]
        if problems:
            raise self._refusal(problems, names)

    def _problem(self, finding: Any) -> str:
        name = ".".join([self.key, *(str(part) for part in finding["loc"])])
        if finding["type"] == "missing":
            return f"{name} is missing"
        return f"{name}: {finding['msg'].removeprefix('Value error, ')}"

    def _unknown(self, key: str, known: Iterable[str]) -> str:
        return f"unknown key {self.key}.{key}: {_suggestion(key, known)}"

    def _refusal(self, problems: list[str], known: Iterable[str]) -> PenstockError:
        keys = ", ".join(["type", *sorted(known)])
        return PenstockError(
            ErrorKind.CONFIG, "; ".join(problems), hint=f"{self.key} takes the keys {keys}"
        )


DESTINATIONS = Registry(
    "destination",
    "penstock.destinations",
    {
        "delta": "penstock.destinations.delta:DeltaDestination",
        "memory": "penstock.destinations.memory:MemoryDestination",
        "null": "penstock.destinations.null:NullDestination",
    },
)
STORES = Registry(
    "store",
    "penstock.stores",
    {
        "memory": "penstock.stores.memory:MemoryStore",
        "sql": "penstock.stores.sql:SqlStore",
    },
)


def _keys(model: type[BaseModel]) -> list[str]:
    """Return what a file may call the fields of a model."""
    keys = []
    for name, each in model.model_fields.items():
        alias = each.validation_alias or each.alias
        keys.append(alias if isinstance(alias, str) else name)
    return keys


def _suggestion(given: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known) or 'none'}"
