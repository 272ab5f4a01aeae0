"""The applications of one process share what is equal in all of them.

Tests make about 200 applications. Nearly all the time to make one is pydantic building the same
schemas, FastAPI reading the same signatures, and Jinja compiling the same templates again. Each of
them depends on nothing but its source, so that each is made once here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pydantic
from fastapi import routing
from fastapi._compat import v2
from jinja2 import Environment

_adapters: dict[tuple[object, ...], pydantic.TypeAdapter[Any]] = {}
_routes: dict[tuple[object, ...], dict[str, Any]] = {}
_templates: dict[tuple[object, ...], Any] = {}

describe_route = routing._populate_api_route_state
compile_template = Environment.compile


def share_parts() -> None:
    """From now on, share them in this process."""
    v2.TypeAdapter = _adapt  # type: ignore[assignment,misc]
    routing._populate_api_route_state = _describe
    Environment.compile = _compile  # type: ignore[method-assign,assignment]


def _adapt(kind: Any, **more: Any) -> pydantic.TypeAdapter[Any]:
    """Return the adapter of an annotated type; build it at the first call."""
    annotation, *fields = get_args(kind)
    key = (annotation, repr(fields), repr(more))
    if key not in _adapters:
        _adapters[key] = pydantic.TypeAdapter(kind, **more)
    return _adapters[key]


def _describe(route: Any, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
    """Set the attributes of a route; at the first call, read the signature of its function."""
    own = {"dependency_overrides_provider": more["dependency_overrides_provider"]}
    key = (
        endpoint.__code__,
        repr(endpoint.__defaults__),
        path,
        repr({**more, **dict.fromkeys(own)}),
    )
    if key not in _routes:
        describe_route(route, path, endpoint, **more)
        _routes[key] = dict(vars(route))
    known = _routes[key]
    own |= {"endpoint": endpoint, "dependant": replace(known["dependant"], call=endpoint)}
    vars(route).update(known | own)


def _compile(self: Environment, source: Any, *more: Any, **named: Any) -> Any:
    """Return the code of a template; compile it at the first call."""
    key = (source, more, repr(named), self.autoescape, frozenset(self.filters))
    if key not in _templates:
        _templates[key] = compile_template(self, source, *more, **named)
    return _templates[key]
