"""The output of a drill while it runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from watchtower.drills.result import Result
from watchtower.drills.watch import Observed


class Display(Protocol):
    """Shows the progress of a drill."""

    def open(self, lines: list[str]) -> None:
        """Show what the drill will do."""

    def note(self, text: str, observed: Observed) -> None:
        """Show a step of the drill."""

    def show(self, observed: Observed) -> None:
        """Show the current state; called ten times a second."""

    def finish(self, result: Result, closing: list[str], staying: list[str]) -> None:
        """Show the outcome, and last what a person can do while the job stays, if it does."""

    def close(self) -> None:
        """Restore the terminal, also after an exception."""


def clock_text(observed: Observed, now: float | None = None) -> str:
    """Return the seconds since the fault; before the fault, since the start."""
    now = time.monotonic() if now is None else now
    if observed.fault_at is None:
        return f"{now - observed.started_at:6.1f} s"
    return f"fault {now - observed.fault_at:+6.1f} s"
