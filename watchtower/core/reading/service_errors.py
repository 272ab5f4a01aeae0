"""Finds the service that an exception complains about. The table is data."""

from __future__ import annotations

import re
from functools import lru_cache

from watchtower.core.reading.facts import read_facts
from watchtower.core.reading.frames import last_component
from watchtower.core.reading.patterns import part, whole

_ERRORS = tuple(
    (whole(entry["type"]), part(entry.get("text", ""), re.IGNORECASE), str(entry["service"]))
    for entry in read_facts("service_errors")["error"]
)


@lru_cache(maxsize=4096)
def find_service(exception_type: str, text: str) -> str:
    """Return "storage", "network" or "gpu"; empty if the exception names no such service."""
    name = last_component(exception_type)
    for types, texts, service in _ERRORS:
        if types.matches(name) and texts.matches(text):
            return service
    return ""
