"""The classes of native libraries, by the reviewed names in `agent/data/native_libraries.toml`.

Standard library only: a child process reads them, too.
"""

from __future__ import annotations

import re
from functools import lru_cache

from watchtower.service.toml_tables import read_table
from watchtower.wire.bounds import MAX_NAME

PYTHON, LIBC, GLUE, DEVICE, COMPILER = "python", "libc", "glue", "device", "compiler"
DEVICE_OR_WORK, GENERATED, NATIVE = "device_or_work", "generated", "native"

MAX_REMEMBERED = 1024
"""Libraries whose classes are remembered. Each sample of a thread asks for one."""

_TABLE = read_table("agent.data", "native_libraries")["library"]
_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    [(entry["class"], re.compile("|".join(f"(?:{n})" for n in entry["names"]))) for entry in _TABLE]
)


@lru_cache(MAX_REMEMBERED)
def class_of(library: str) -> str:
    """Return the class of a library by its base name."""
    name = library.rpartition("/")[2][:MAX_NAME]
    for kind, pattern in _CLASSES:
        if pattern.fullmatch(name):
            return kind
    return NATIVE
