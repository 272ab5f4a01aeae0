"""Reviewed facts about other people's software, as data files; read once, when core is imported.

Each entry carries the reason it is there. Adding a fact means adding an entry, not code.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def read_facts(name: str) -> dict[str, Any]:
    """Read the table `name`.toml that lies beside this module."""
    return tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))
