"""What a drill tells whoever watches it: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from watchtower.drills.result import Result
from watchtower.drills.watch import Observed


class Display(Protocol):
    """Shows a drill as it goes."""

    def open(self, lines: list[str]) -> None:
        """Say what is about to happen."""

    def note(self, text: str, observed: Observed) -> None:
        """Say what the drill does."""

    def show(self, observed: Observed) -> None:
        """Show what is seen now; called ten times a second."""

    def finish(self, result: Result, closing: list[str]) -> None:
        """Show the outcome."""

    def close(self) -> None:
        """Leave the terminal as it was, whatever happened."""


def clock_text(observed: Observed, now: float | None = None) -> str:
    """Seconds since the fault, or since the start while there is none."""
    now = time.monotonic() if now is None else now
    if observed.fault_at is None:
        return f"{now - observed.started_at:6.1f} s"
    return f"fault {now - observed.fault_at:+6.1f} s"
