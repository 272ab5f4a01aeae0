"""What a tool that lives inside the job is to this benchmark, and what all of them are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchtower.drills.drill import Drill
from watchtower.drills.job import TrainingJob

THRESHOLD_S = 10.0
"""How long a rank may be silent: the same for every tool. Within this time after a stall watchtower
publishes its first verdict with default settings (`TARGETS_S` of benchmarks/latency.py)."""
INSIDE = Path(__file__).with_name("inside")
SAID_MAX = 500
"""Characters kept of what a tool printed: its few lines that accuse, not a whole log."""

Text = dict[str, str]
"""What the processes of the job have written so far, by the name of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a tool has said about a hang."""

    accused: tuple[int, ...] = ()
    """The ranks that it names, in order."""
    text: str = ""
    """Its own words."""
    is_final: bool = False
    """Whether it has nothing to add. Else the wait ends with the job, or at the deadline."""


def shorten(lines: list[str]) -> str:
    """Join what was said, each line once, up to `SAID_MAX` characters."""
    return " | ".join(dict.fromkeys(line.strip() for line in lines))[:SAID_MAX]


def no_excuse(_: Drill) -> str | None:
    """Every drill can be had."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: how the job is started with it, and how its words are read."""

    name: str
    settings: str
    """What it is set to; with its name, in the rows."""
    packages: tuple[str, ...]
    """Distributions whose versions belong to a row."""
    module: str
    """What has to be there to be imported."""
    read: Callable[[Text], Said | None]
    """None while it has said nothing."""
    environment: Callable[[Drill], Mapping[str, str]] = field(default=lambda _: {})
    """More variables for the ranks and their launcher."""
    why_not: Callable[[Drill], str | None] = no_excuse
    """Why it has nothing to say in this drill; None where the drill can be run."""
    job: type[TrainingJob] = TrainingJob
    """How ranks are launched; torchrun if this does not differ."""
    nodes: int = 2
    in_own_network: bool = True
    """Whether the ranks can each have a network namespace, where the drill cuts links."""

    @property
    def label(self) -> str:
        """The settings of its rows: no other tool's, and not watchtower's."""
        return f"{self.name}: {self.settings}"
