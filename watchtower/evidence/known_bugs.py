"""Known bugs of other software: whether what a rank runs and does fits one.

The table is data (`facts/known_bugs.toml`). A version is compared by its numbers: "2.27.3+cuda12.9"
is 2.27.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchtower.evidence.facts import TextPattern, part, read_facts, whole
from watchtower.evidence.frames import FrameClass
from watchtower.wire.dumps import RankDump

MACHINE = "machine"
"""Name under which a dump has the machine of its node: "aarch64"."""

DEVICE, SET_UP = "device", "set-up"
"""What the ranks wait for that a bug holds up."""

MAX_NUMBERS = 6
"""Numbers of a version that are compared."""

_NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,5}")

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBug:
    """One entry of the table."""

    library: str
    at_least: Version
    below: Version
    """Empty: all later versions have it, too."""
    machine: TextPattern | None
    waits: str
    error: TextPattern | None
    text: str
    advice: str
    link: str

    def has(self, versions: Mapping[str, str]) -> bool:
        """Return whether these versions have the bug."""
        version = read_version(versions.get(self.library, ""))
        if not version or version < self.at_least or (self.below and version >= self.below):
            return False
        return self.machine is None or self.machine.matches(versions.get(MACHINE, ""))

    def shows(self, frame_class: FrameClass, *, in_device: bool, error: str) -> bool:
        """Return whether a rank waits where the bug hangs, or has raised its error."""
        if self.error is not None:
            return bool(error) and self.error.matches(error)
        if self.waits == DEVICE:
            return in_device
        return self.waits != SET_UP or frame_class is FrameClass.INIT


def read_version(text: str) -> Version:
    """Return the numbers of a version; empty without any."""
    match = _NUMBERS.match(text)
    return tuple(map(int, match.group().split("."))) if match else ()


def versions_of(dumps: Sequence[RankDump]) -> dict[str, str]:
    """Return the versions of a rank's software by name, from its newest dump that has some."""
    found = next((dump.software for dump in reversed(dumps) if dump.software), ())
    return {each.name: each.version for each in found}


def _read_bug(entry: dict[str, Any]) -> KnownBug:
    return KnownBug(
        library=entry["library"],
        at_least=read_version(entry.get("at_least", "")),
        below=read_version(entry.get("below", "")),
        machine=whole(entry["machine"]) if "machine" in entry else None,
        waits=entry.get("waits", ""),
        error=part(entry["error"], re.IGNORECASE) if "error" in entry else None,
        text=entry["text"],
        advice=entry["advice"],
        link=entry["link"],
    )


KNOWN_BUGS = tuple(map(_read_bug, read_facts("known_bugs")["bug"]))
