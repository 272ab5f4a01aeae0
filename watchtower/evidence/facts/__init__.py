"""Reviewed facts about other software, as data files. They are read once, at import.

Each entry contains the reason for it. A new fact needs a new entry, but no code.
"""

from __future__ import annotations

from typing import Any

from watchtower.service.toml_tables import read_table


def read_facts(name: str) -> dict[str, Any]:
    """Return the table in the file `name`.toml beside this module."""
    return read_table(__name__, name)
