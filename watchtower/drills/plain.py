"""Plain lines: one for each change, with the seconds since the fault."""

from __future__ import annotations

import time
from typing import TextIO

from watchtower.drills.display import clock_text
from watchtower.drills.result import Result
from watchtower.drills.text import (
    accused,
    clean,
    outcome_lines,
    state_of,
    status_line,
    verdict_lines,
)
from watchtower.drills.watch import Observed

PROGRESS_EVERY_S = 10.0
"""Seconds between lines about a job that only trains."""


class PlainDisplay:
    """Writes to a stream, a line at a time."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: dict[str, str] = {}
        self._progress_at = 0.0

    def open(self, lines: list[str]) -> None:
        """Show what the drill will do."""
        for line in lines:
            self._write(line)

    def note(self, text: str, observed: Observed) -> None:
        """Show a step of the drill."""
        self._write(f"[{clock_text(observed)}] {clean(text)}")

    def show(self, observed: Observed) -> None:
        """Write the changes since the last call."""
        for topic, line in changes(observed):
            if self._shown.get(topic) != line:
                self._shown[topic] = line
                self.note(line, observed)
        now = time.monotonic()
        step = (observed.view or {}).get("step")
        if (
            step is not None
            and observed.fault_at is None
            and now - self._progress_at > PROGRESS_EVERY_S
        ):
            self._progress_at = now
            self.note(f"step {step}", observed)

    def finish(self, result: Result, closing: list[str], staying: list[str]) -> None:
        """Write the verdict and the outcome."""
        lines = verdict_lines(result.observed.verdict or {}) if result.drill.is_fault else []
        for block in (lines, outcome_lines(result), closing, staying):
            for line in ["", *block] if block else []:
                self._write(line)

    def close(self) -> None:
        """Does nothing: there is nothing to restore."""

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def changes(observed: Observed) -> list[tuple[str, str]]:
    """Return (topic, line) for everything that gets a line when it changes."""
    found = []
    if observed.statuses:
        found.append(("status", status_line(state_of(observed.statuses[-1], observed.verdict))))
    verdict = observed.verdict or {}
    if verdict.get("cause") and verdict.get("diagnosed_at"):
        suspects = "; ".join(accused(verdict)) or "no suspect"
        found.append(("verdict", f"verdict {clean(verdict['cause'])}: {suspects}"))
    dumps = (observed.view or {}).get("dumps")
    if isinstance(dumps, dict) and dumps.get("want"):
        found.append(("dumps", f"dumps {dumps.get('have')} of {dumps.get('want')}"))
    for incident in observed.incidents:
        found.append((f"incident {incident.get('id')}", f"incident {clean(incident.get('id'))}"))
    return found
