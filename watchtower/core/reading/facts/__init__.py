"""Reviewed facts about other software, as data files. They are read once, when core is imported.

Each entry contains the reason for it. A new fact needs a new entry, but no code.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def read_facts(name: str) -> dict[str, Any]:
    """Return the table in the file `name`.toml beside this module."""
    return tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))
