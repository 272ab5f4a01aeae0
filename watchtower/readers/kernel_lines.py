"""Lines of the kernel log that can explain a hang: the table of agents, and in files of people.

`dmesg` writes "[123.456789] text", or "[Sat Nov 28 20:00:00 2026] text" with -T; syslog and
journalctl put a time and the name of the node in front. Which lines are known is data:
`kernel_lines.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from watchtower.readers.findings import Finding, ObservedFound, Owner, Place
from watchtower.readers.text_lines import Line
from watchtower.service.toml_tables import read_table
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.observations import MAX_OBSERVATION_TEXT, MAX_WORD, Observation, name_pci
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
        for entry in read_table("watchtower.readers", "kernel_lines")["line"]
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


WORDS = tuple(row.mark.encode() for row in _ROWS)

SOURCE = "kernel_log"

_BEGIN = re.compile(
    r"(?:<\d{1,3}>)?"
    r"(?:(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,24})"
    r" (?P<node>[\w.-]{1,128}) kernel: )?"
    r"(?:\[[ \d]{0,8}\d\.\d{6}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\] )?"
)


def read(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield what a line of the kernel log shows."""
    text = lines[0].text
    begin = _BEGIN.match(text)
    found = read_line(text[begin.end() :]) if begin else None
    if begin is None or found is None or found.clears:
        return
    yield ObservedFound(
        place=place,
        owner=Owner(),
        node=printable(begin["node"] or "", MAX_NAME),
        observation=Observation(
            source=SOURCE,
            subject=found.subject,
            name=found.name,
            age_s=0.0,
            pid=found.pid,
            value=found.value,
            unit=found.unit,
            text=found.text,
        ),
    )
