"""What the fields of answers mean: the texts below the fields in the source, for /openapi.json."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any


def describe_fields(schemas: dict[str, Any], answers: Iterable[Any]) -> None:
    """Add the descriptions of fields to the schemas of dataclasses.

    `answers` are the types that routes return.
    """
    for kind in set(_find_dataclasses(answers)):
        fields = schemas.get(kind.__name__, {}).get("properties", {})
        for name, text in _texts_of(kind).items():
            if name in fields:
                fields[name].setdefault("description", text)


def _find_dataclasses(kinds: Iterable[Any]) -> Iterator[type]:
    """Yield the dataclasses in these types, also those of their fields."""
    waiting, seen = list(kinds), set[Any]()
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            if kind not in seen:
                seen.add(kind)
                yield kind
                waiting += typing.get_type_hints(kind).values()
        else:
            waiting += typing.get_args(kind)


def _texts_of(kind: type) -> dict[str, str]:
    """Return the text of each field of a dataclass, also of inherited ones."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if dataclasses.is_dataclass(each):
            texts |= _read_module(each.__module__).get(each.__name__, {})
    return texts


@lru_cache(maxsize=64)
def _read_module(name: str) -> dict[str, dict[str, str]]:
    """Return the texts of fields in a module, by class. Empty without its source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, KeyError):
        return {}
    return {
        node.name: dict(_read_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)
    }


def _read_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            yield field.target.id, " ".join(after.value.value.split())
