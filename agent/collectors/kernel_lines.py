"""Recognises the lines of the kernel log that can explain a hang. The table is data."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.collectors.subjects import name_pci
from watchtower.service.toml_tables import read_table
from watchtower.wire.observations import MAX_OBSERVATION_TEXT, MAX_WORD
from watchtower.writing.printable import printable

MAX_LINE = 1024
"""Characters of a line that are used. The kernel cuts its own lines at this length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """One recognised line."""

    name: str
    subject: str
    text: str
    value: float | None = None
    unit: str = ""
    pid: int | None = None
    owner: str = ""
    """uid of the process, if the line contains it."""
    clears: bool = False
    """The observation with this name and subject has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    subject: str
    mark: str
    pattern: re.Pattern[str]
    unit: str
    clears: bool


_ROWS = tuple(
    [
        _Row(
            name=entry["name"],
            subject=entry["subject"],
            mark=entry["mark"],
            pattern=re.compile(entry["pattern"]),
            unit=entry.get("unit", ""),
            clears=entry.get("clears", False),
        )
        for entry in read_table("agent.data", "kernel_lines")["line"]
    ]
)


def read_line(line: str) -> KernelLine | None:
    """Return what a line of the kernel log reports; None if it is of no use."""
    for row in _ROWS:
        if row.mark in line and (match := row.pattern.match(line[:MAX_LINE])) is not None:
            return _make(row, line, match.groupdict(""))
    return None


def _make(row: _Row, line: str, groups: dict[str, str]) -> KernelLine:
    if "pci" in groups:
        groups["pci"] = name_pci(groups["pci"]).removeprefix("pci:")
    pid, value = groups.get("pid", ""), groups.get("value", "")
    return KernelLine(
        name=row.name.format_map(groups),
        subject=row.subject.format_map(groups)[:MAX_WORD],
        text=printable(line, MAX_OBSERVATION_TEXT),
        value=float(value) if value else None,
        unit=row.unit,
        pid=int(pid) if pid else None,
        owner=groups.get("owner", ""),
        clears=row.clears,
    )
