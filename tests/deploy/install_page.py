"""docs/install.md and the commands in it."""

from __future__ import annotations

from pathlib import Path

from tests.console import find_commands

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text("utf-8")


def commands() -> list[list[str]]:
    """Return each command of the page as its words."""
    return find_commands(PAGE)
