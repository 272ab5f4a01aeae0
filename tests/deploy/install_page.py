"""docs/install.md and the commands in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text("utf-8")


def commands() -> list[list[str]]:
    """Return each command of the page as its words."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    quoted = re.findall(r"`((?:make|watchtower|watchtower-agent|systemctl) [^`]+)`", PAGE)
    parts = [part for line in lines for part in line[2:].split("&&")] + quoted
    return [shlex.split(part) for part in parts]
