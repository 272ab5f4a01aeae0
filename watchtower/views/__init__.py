"""What anybody is shown, as values. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def copy_fields(value: object, kind: type[Any]) -> dict[str, Any]:
    """Return those fields of a value that a dataclass has, by name: for a value that extends it."""
    return {each.name: getattr(value, each.name) for each in fields(kind)}
