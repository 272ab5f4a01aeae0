"""Runs a drill on a job with a tool inside, and reads that tool's output instead of
watchtower's.
"""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.accuracy.live.tool import INSIDE, Said, Text, Tool
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.job import TrainingJob
from watchtower.drills.launching import Layout
from watchtower.drills.runner import CHANCE_STEPS
from watchtower.drills.settings import DrillSettings
from watchtower.drills.setup import Variables
from watchtower.drills.watch import Observed

SETTINGS = DrillSettings(verdict_deadline_s=60.0)
"""The drills' settings with another deadline. A tool without a verdict this long after the fault,
six times its threshold, abstains.
"""
FILE_MAX = 2**20
"""Characters read of each file, because a rank may print without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One drill under one tool."""

    ranks: tuple[int, ...]
    """The ranks with the fault."""
    said: Said
    fault_to_verdict_s: float | None
    """Seconds from the fault to the tool's first verdict; None if it named no rank."""


class Listener:
    """Reads the output of the job's processes; replaces the drill's `Watch`."""

    def __init__(self, tool: Tool, job: TrainingJob, folder: Path) -> None:
        self.observed = Observed(job=job.name, started_at=time.monotonic())
        self.said = Said()
        self._tool, self._job, self._folder = tool, job, folder

    def poll(self) -> None:
        """Read everything again after a poll of the job, so that the output of ended processes is
        complete.
        """
        has_ended = self._job.has_ended()
        said = self._tool.read(read_text(self._folder, self._job.name))
        observed, now = self.observed, time.monotonic()
        if said is not None:
            self.said = said
            observed.named_at = observed.named_at or now
        is_final = self.said.is_final or has_ended
        observed.final_since = (observed.final_since or now) if is_final else None


class NoStage:
    """Replaces tower and agents: there are none."""

    clock = None

    def check(self) -> None:
        """Nothing to check."""

    def kill_agent(self, node: int) -> None:
        """Do nothing: there is no agent on the node."""


class NoDisplay:
    """Shows nothing."""

    def note(self, text: str, observed: Observed) -> None:
        """Do nothing."""

    def show(self, observed: Observed) -> None:
        """Do nothing."""


def play(
    tool: Tool,
    drill: Drill,
    ranks: int,
    *,
    rank: int | None = None,
    settings: DrillSettings = SETTINGS,
) -> Heard:
    """Run the drill with the tool in the job. `rank` has the fault, or a random one.

    Raises DrillError if the job did not reach the fault.
    """
    if not tool.in_own_network:
        drill = replace(drill, networked=())
    rank = random.randrange(ranks) if rank is None else rank
    step = settings.warmup_steps + random.randrange(CHANCE_STEPS + 1)
    with tempfile.TemporaryDirectory(prefix="watchtower-live-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        job = make_job(tool, drill, ranks, folder)
        listener = Listener(tool, job, folder)
        variables = Variables(settings=settings, rank=rank, ranks=ranks, step=step)
        run = DrillRun(drill, variables, NoStage(), job, listener, NoDisplay())
        try:
            drill.act(run)
        finally:
            run.end()
    named_s = listener.observed.fault_to_verdict_s if listener.said.accused else None
    return Heard(ranks=run.ranks, said=listener.said, fault_to_verdict_s=named_s)


def make_job(tool: Tool, drill: Drill, ranks: int, folder: Path) -> TrainingJob:
    """Return the drill's job, with the tool instead of the heartbeat client."""
    path = [str(INSIDE / tool.name), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Killed launchers leave folders and sockets, which are removed with the drill's folder.
    places = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(folder)}
    return tool.job(
        f"drill-{secrets.token_hex(4)}",
        "torch",
        Layout(ranks=ranks, nodes=tool.nodes),
        folder,
        parallelism=drill.parallelism,
        bare=drill.bare_launch or "torch" in drill.networked,
        environment={**places, **tool.environment(drill)},
    )


def read_text(folder: Path, job: str) -> Text:
    """Return the output of the job's processes."""
    found = {}
    for path in sorted([*folder.glob(f"{job}-*.out"), *folder.glob(f"{job}-*.err")]):
        with path.open(encoding="utf-8", errors="replace") as file:
            found[path.name] = file.read(FILE_MAX)
    return found
