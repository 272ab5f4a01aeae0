"""The executable mappings of a process: what an address belongs to. Standard library only."""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

MAX_MAPS_BYTES = 8 << 20
"""Bytes of one memory map. A process with torch has 60 kB, one with many files some hundred."""

GENERATED = "[generated]"
"""Executable memory without a file: code made at run time."""

OF_THE_KERNEL = ("[vdso]", "[vsyscall]", "[uprobes]")
"""Mappings without a file that are not generated: a process can name its own "[anon:NAME]"."""

NOT_FILES = ("/memfd:", "/dev/zero", "/SYSV")
"""Beginnings of paths of memory without a file."""

DELETED = " (deleted)"
"""The words that the kernel adds to the path of a library that was replaced since it was loaded."""


class Mapping(NamedTuple):
    """One executable part of an address space."""

    start: int
    end: int
    name: str
    base: int
    """Address of the beginning of its file, with the ELF header; 0 if that is not mapped."""


class Maps:
    """The executable mappings of a process, from /proc/PID/maps."""

    def __init__(self, text: str) -> None:
        self._items = sorted(_parse(text))
        self._starts = [item.start for item in self._items]

    def find(self, address: int) -> Mapping | None:
        """Return the mapping that contains an address."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self._items[at] if at >= 0 and address < self._items[at].end else None

    def name_of(self, address: int) -> str:
        """Return the name of the mapping that contains an address; empty if none does."""
        found = self.find(address)
        return found.name if found else ""


def read_maps(folder: str) -> Maps:
    """Return the mappings of a process, by its folder in /proc. Raises OSError. It may hang."""
    with open(f"{folder}/maps", "rb") as file:
        return Maps(file.read(MAX_MAPS_BYTES).decode("utf-8", "replace"))


def _parse(text: str) -> Iterator[Mapping]:
    bases: dict[str, int] = {}
    for line in text.split("\n"):
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        path = fields[5] if len(fields) > 5 else ""
        first, _, last = fields[0].partition("-")
        with contextlib.suppress(ValueError):
            start, end, offset = int(first, 16), int(last, 16), int(fields[2], 16)
            if offset == 0 and path:
                bases[path] = start
            if "x" in fields[1]:
                yield Mapping(start, end, _name(path), bases.get(path, 0))


def _name(path: str) -> str:
    """Return the base name of a mapping, with its package: "numpy.libs/libopenblas.so"."""
    if path in OF_THE_KERNEL:
        return path
    if not path.startswith("/") or path.startswith(NOT_FILES):
        return GENERATED
    folder, name = os.path.split(path.removesuffix(DELETED))
    package = next((p for p in reversed(folder.split("/")) if p.endswith(".libs")), "")
    return f"{package}/{name}" if package else name
