"""Settings that are numbers: fields of a dataclass, each with a range and a description."""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING

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
