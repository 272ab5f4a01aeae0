"""The commands of a page: its console blocks, and commands that it quotes."""

from __future__ import annotations

import re
import shlex

QUOTED = re.compile(r"`((?:make|watchtower|watchtower-agent|systemctl) [^`]+)`")


def find_blocks(page: str) -> list[str]:
    """Return the text of each console block."""
    return re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def find_commands(page: str) -> list[list[str]]:
    """Return each command of the page as its words."""
    lines = [line for block in find_blocks(page) for line in block.splitlines()]
    parts = [part for line in lines for part in line[2:].split("&&")] + QUOTED.findall(page)
    return [shlex.split(part) for part in parts]
