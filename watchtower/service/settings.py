"""Settings: numbers with a range and a description, and the tables of a settings file (TOML).

Every error names the key, its value and the allowed values. A file with several errors gives all of
them, one a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """Raise ValueError with setting, value and range of each value that is out of range."""
    wrong = []
    for item in fields(settings):
        value = getattr(settings, item.name)
        low, high = item.metadata["low"], item.metadata["high"]
        if not isinstance(value, int | float) or isinstance(value, bool):
            wrong.append(f"`{item.name}` is {value!r}, allowed is a number")
        elif not low <= value <= high:
            wrong.append(f"`{item.name}` is {value:g}, allowed is {low:g} to {high:g}")
    if wrong:
        raise ValueError("\n".join(wrong))


Settings = TypeVar("Settings", bound="DataclassInstance")
Made = TypeVar("Made")

TABLES = ("detection", "tower", "retention", "alerts", "pages", "drill")

_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


class ConfigError(Exception):
    """Settings are not valid. Each line of the message names a key, its value and the allowed
    values."""


class Attempts:
    """Makes several things from settings. The errors of all of them become one error."""

    def __init__(self, *kinds: type[Exception]) -> None:
        """`kinds` are errors that settings may cause, besides ConfigError."""
        self._kinds: tuple[type[Exception], ...] = (ConfigError, *kinds)
        self._errors: list[str] = []

    def make(self, make: Callable[[], Made], instead: Made) -> Made:
        """Return what was made; `instead` if that failed: then `check` raises the error."""
        try:
            return make()
        except self._kinds as error:
            self._errors.append(str(error))
            return instead

    def check(self) -> None:
        """Raise ConfigError with the errors so far, if there are any."""
        if self._errors:
            raise ConfigError("\n".join(self._errors))


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
    allowed = ", ".join(f"[{known}]" for known in TABLES)
    unknown = [
        f"unknown table `{name}` in {path}, allowed are {allowed}"
        for name, table in data.items()
        if name not in TABLES or not isinstance(table, dict)
    ]
    if unknown:
        raise ConfigError("\n".join(unknown))
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
    # The value of an unknown setting may be a secret.
    wrong = {
        key: f"unknown setting `{key}` in [{name}]{_hint(key, known)}"
        for key in table
        if key not in known
    }
    wrong |= _find_wrong({key: table[key] for key in table if key in known}, kind)
    texts = list(wrong.values())
    try:
        made = msgspec.convert({key: table[key] for key in table if key not in wrong}, kind)
    except ConfigError as error:
        texts.append(str(error))
    except msgspec.ValidationError as error:  # from `__post_init__` of the class
        lines = str(error.__cause__ or error).splitlines()
        texts += [f"in [{name}]: {line}" for line in lines]
    if texts:
        raise ConfigError("\n".join(texts))
    return made


def _find_wrong(table: Mapping[str, Any], kind: type[DataclassInstance]) -> dict[str, str]:
    """Return an error for each key whose value is of a type that is not allowed."""
    wrong = {}
    for key, value in table.items():
        try:
            msgspec.convert({key: value}, kind)
        except ConfigError:
            continue  # from `__post_init__` of the class: other keys count, too
        except msgspec.ValidationError as error:
            if error.__cause__ is None:
                wrong[key] = f"`{key}` is {value!r}, allowed is {_allowed(kind, key)}"
    return wrong


def _hint(key: str, known: set[str]) -> str:
    close = get_close_matches(key, known, n=1)
    return f": did you mean `{close[0]}`?" if close else f", allowed: {', '.join(sorted(known))}"


def _allowed(kind: type[DataclassInstance], key: str) -> str:
    hint = get_type_hints(kind, include_extras=True)[key]
    texts = [each.description for each in getattr(hint, "__metadata__", ()) if each.description]
    return texts[0] if texts else _KINDS.get(hint, "another type of value")
