"""The applications of one process share the schemas of their parameters and replies.

Tests make about 170 applications. Nine tenths of the time to make one is pydantic building the
same schemas again. A schema depends on nothing but its type, so that each is built once here.
"""

from __future__ import annotations

from typing import Any, get_args

import pydantic
from fastapi._compat import v2

_built: dict[tuple[object, ...], pydantic.TypeAdapter[Any]] = {}


def _adapt(kind: Any, **more: Any) -> pydantic.TypeAdapter[Any]:
    """Return the adapter of an annotated type; build it at the first call."""
    annotation, *fields = get_args(kind)
    key = (annotation, repr(fields), repr(more))
    if key not in _built:
        _built[key] = pydantic.TypeAdapter(kind, **more)
    return _built[key]


def share_schemas() -> None:
    """From now on, share them in this process."""
    v2.TypeAdapter = _adapt  # type: ignore[assignment,misc]
