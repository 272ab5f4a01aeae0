"""The applications of one process share what is equal in all of them.

Tests make about 200 applications. Nearly all the time to make one is pydantic building the same
schemas, FastAPI reading the same signatures, and Jinja compiling the same templates again. Each of
them depends on nothing but its source, so that each is made once here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, get_args

import pydantic
from fastapi._compat import v2
from fastapi.dependencies import utils
from jinja2 import Environment

_adapters: dict[tuple[object, ...], pydantic.TypeAdapter[Any]] = {}
_signatures: dict[tuple[CodeType, str], inspect.Signature] = {}
_templates: dict[tuple[object, ...], Any] = {}

read_signature, compile_template = utils.get_typed_signature, Environment.compile


def share_parts() -> None:
    """From now on, share them in this process."""
    v2.TypeAdapter = _adapt  # type: ignore[assignment,misc]
    utils.get_typed_signature = _read
    Environment.compile = _compile  # type: ignore[method-assign,assignment]


def _adapt(kind: Any, **more: Any) -> pydantic.TypeAdapter[Any]:
    """Return the adapter of an annotated type; build it at the first call."""
    annotation, *fields = get_args(kind)
    key = (annotation, repr(fields), repr(more))
    if key not in _adapters:
        _adapters[key] = pydantic.TypeAdapter(kind, **more)
    return _adapters[key]


def _read(call: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function that an application defines; read it at the first call."""
    code = getattr(call, "__code__", None)
    if code is None:
        return read_signature(call)
    key = (code, repr(getattr(call, "__defaults__", None)))
    if key not in _signatures:
        _signatures[key] = read_signature(call)
    return _signatures[key]


def _compile(self: Environment, source: Any, *more: Any, **named: Any) -> Any:
    """Return the code of a template; compile it at the first call."""
    key = (source, more, repr(named))
    if key not in _templates:
        _templates[key] = compile_template(self, source, *more, **named)
    return _templates[key]
