"""The definition of a tool that works inside the job, and the settings common to all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchtower.drills.drill_run import Drill
from watchtower.drills.job import TrainingJob

THRESHOLD_S = 10.0
"""Seconds without progress of a rank, equal for every tool. Within this time after a stall
watchtower publishes its first verdict with default settings (`TARGETS_S` of benchmarks/latency.py).
"""
INSIDE = Path(__file__).with_name("inside")
SAID_MAX = 500
"""Characters stored of a tool's output: only the lines that accuse, not a whole log."""

Text = dict[str, str]
"""The output of the job's processes so far, by the name of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A tool's verdict on a hang."""

    accused: tuple[int, ...] = ()
    """The ranks that it names, in order."""
    text: str = ""
    """Its own text."""
    is_final: bool = False
    """Whether nothing can follow. Otherwise the wait ends with the job, or at the deadline."""


def shorten(lines: list[str]) -> str:
    """Join the lines, each once, up to `SAID_MAX` characters."""
    return " | ".join(dict.fromkeys(line.strip() for line in lines))[:SAID_MAX]


def no_excuse(_: Drill) -> str | None:
    """Return None: every drill can be run."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: how the job is started with it, and how its output is read."""

    name: str
    settings: str
    """Its settings, which are in the rows with its name."""
    packages: tuple[str, ...]
    """Distributions whose versions belong to a row."""
    module: str
    """The module that must be importable."""
    read: Callable[[Text], Said | None]
    """Returns the verdict; None while there is none."""
    environment: Callable[[Drill], Mapping[str, str]] = field(default=lambda _: {})
    """More variables for the ranks and their launcher."""
    why_not: Callable[[Drill], str | None] = no_excuse
    """Returns why it cannot work in this drill; None if the drill can be run."""
    job: type[TrainingJob] = TrainingJob
    """How ranks are launched; by default with torchrun."""
    nodes: int = 2
    in_own_network: bool = True
    """Whether each rank can have its own network namespace, if the drill cuts links."""

    @property
    def label(self) -> str:
        """Return the settings in its rows. They differ from those of every other tool and of
        watchtower.
        """
        return f"{self.name}: {self.settings}"
