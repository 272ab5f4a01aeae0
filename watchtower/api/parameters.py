"""Parameters that several routes have, and answers as /docs describes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import Field

from watchtower.wire.bounds import MAX_NAME

NO_TEXTS: Mapping[str, str] = MappingProxyType({})

JobName = Annotated[str, Path(description="Name of the job, as /api/v1/jobs lists it.")]

IncidentId = Annotated[
    str,
    Path(
        description="Id of the incident, or the beginning of it. If several incidents begin so, "
        "the answer is 409 and names them."
    ),
]

Limit = Annotated[int, Query(ge=1, le=1000, description="How many items are returned at most.")]

PersonName = Annotated[
    str | None,
    Field(
        max_length=MAX_NAME,
        pattern=r"\S",
        description="Name of the person. It may be left out, but not be empty.",
        examples=["bob"],
    ),
]

WithDrills = Annotated[
    bool, Query(description="Whether jobs of drills, whose names begin with drill:, are listed.")
]


def answer(example: Any, description: str, texts: Mapping[str, str] = NO_TEXTS) -> dict[Any, Any]:
    """Return the `responses` of a route: its successful answer with an example.

    `texts` are examples of the same answer as text, by media type.
    """
    made = answer_text(texts, description)
    made[200]["content"]["application/json"] = {"example": example}
    return made


def answer_text(texts: Mapping[str, str], description: str) -> dict[Any, Any]:
    """Return the `responses` of a route whose successful answer is text: examples by media type."""
    content = {
        kind: {"schema": {"type": "string"}, "example": text} for kind, text in texts.items()
    }
    return {200: {"description": description, "content": content}}
