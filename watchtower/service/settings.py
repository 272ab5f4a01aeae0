"""Settings: numbers with a range and a description, and the tables of a settings file (TOML).

Every error names the key, its value and the allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from watchtower.service.toml_tables import parse_toml

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def setting(default: float, low: float, high: float, doc: str) -> float:
    """Return a dataclass field with a range and a description.

    The range includes `low` and `high`. docs/settings.md contains `doc`.
    """
    value: float = field(default=default, metadata={"low": low, "high": high, "doc": doc})
    return value


def check_ranges(settings: DataclassInstance) -> None:
    """Raise ValueError with setting, value and range if a value is out of range."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        low, high = item.metadata["low"], item.metadata["high"]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"`{item.name}` is {value!r}, allowed is a number")
        if not low <= value <= high:
            raise ValueError(f"`{item.name}` is {value:g}, allowed is {low:g} to {high:g}")


Settings = TypeVar("Settings", bound="DataclassInstance")

TABLES = ("detection", "tower", "retention", "alerts", "pages", "drill")

_KEY = re.compile(r"`\$\.(\w+)")
"""The key in an error message of msgspec."""

_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


class ConfigError(Exception):
    """A setting is not valid. The message names the key, its value and the allowed values."""


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a configuration file.

    Raises ConfigError if it is not readable, not TOML, or has an unknown table.
    """
    try:
        data = parse_toml(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for name, table in data.items():
        if name not in TABLES or not isinstance(table, dict):
            allowed = ", ".join(f"[{known}]" for known in TABLES)
            raise ConfigError(f"unknown table `{name}` in {path}, allowed are {allowed}")
    return data


def convert(
    name: str,
    table: Mapping[str, Any],
    kind: type[Settings],
    leave_out: frozenset[str] = frozenset(),
) -> Settings:
    """Return the settings in the table `[name]`. Raises ConfigError.

    `leave_out` are fields of `kind` that the table cannot set. The allowed values in an error are
    the description of the field's type (`msgspec.Meta`), or the kind of the type.
    """
    known = {item.name for item in fields(kind)} - leave_out
    for key in table:
        if key not in known:  # its value may be a secret
            raise ConfigError(f"unknown setting `{key}` in [{name}]{_hint(key, known)}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:  # from `__post_init__` of the class
            raise ConfigError(f"in [{name}]: {error.__cause__}") from None
        found = _KEY.search(str(error))
        if found is None:
            raise ConfigError(f"in [{name}]: {error}") from None
        key = found[1]
        raise ConfigError(f"`{key}` is {table[key]!r}, allowed is {_allowed(kind, key)}") from None


def _hint(key: str, known: set[str]) -> str:
    close = get_close_matches(key, known, n=1)
    suggestion = f" (did you mean `{close[0]}`?)" if close else ""
    return f"{suggestion}, allowed: {', '.join(sorted(known))}"


def _allowed(kind: type[DataclassInstance], key: str) -> str:
    hint = get_type_hints(kind, include_extras=True)[key]
    texts = [each.description for each in getattr(hint, "__metadata__", ()) if each.description]
    return texts[0] if texts else _KINDS.get(hint, "another type of value")
