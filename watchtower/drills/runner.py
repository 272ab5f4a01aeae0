"""Runs one drill from start to end, and removes everything that it made."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import FrameType

from watchtower.drills.catalogue import DRILLS
from watchtower.drills.children import start_fixture
from watchtower.drills.client import PatientClient
from watchtower.drills.display import Display
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.environment import Environment
from watchtower.drills.errors import DrillError
from watchtower.drills.gpus import Gpus
from watchtower.drills.job import TrainingJob
from watchtower.drills.judging import Answer, judge
from watchtower.drills.kernel_log import KernelLogs
from watchtower.drills.launching import Layout, choose_backend
from watchtower.drills.moments import Moment
from watchtower.drills.notifying import Notify, wait_for_alert, wait_for_end
from watchtower.drills.result import Result
from watchtower.drills.settings import Config, changed_settings
from watchtower.drills.setup import Variables
from watchtower.drills.text import closing, describe_staying, opening, settings_line
from watchtower.drills.wall_clock import WallClock
from watchtower.drills.watch import Watch

CHANCE_STEPS = 4
"""The fault comes up to this many steps after the warm-up, at random."""

NO_LOG = {"WATCHTOWER_RECORDS": "off"}
"""Environment of a job whose log of collectives agents cannot read."""

CHECK_S = 0.5
"""Seconds between two checks of the tower and the agents while a person looks at the pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The drill that a user wants to run, with its options."""

    drill: Drill
    ranks: int = 8
    nodes: int = 2
    rank: int | None = None
    """The rank with the fault; None means a random one."""
    step: int | None = None
    """The step before which the fault comes; None means that of the drill."""
    moment: Moment | None = None
    """The moment of the fault; None means that of the drill, or the step."""
    backend: str = "auto"
    notify: Notify | None = None
    """The destination that receives the alert of the drill."""
    record: Path | None = None
    """The folder for recordings of the tower."""
    stay: bool = False
    """Show the result while the job, the agents and the tower still run, and end them on Ctrl-C."""
    config: Config

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.ranks < self.drill.least_ranks:
            raise DrillError(f"--ranks {self.ranks}: allowed is {self.drill.least_ranks} or more")
        if self.drill.whole_pairs and self.ranks % 2:
            raise DrillError(f"--ranks {self.ranks}: allowed is an even number")
        if not 1 <= self.nodes <= self.ranks:
            raise DrillError(f"--nodes {self.nodes}: allowed is 1 to --ranks {self.ranks}")
        if self.rank is not None and not 0 <= self.rank < self.ranks:
            raise DrillError(f"--rank {self.rank}: allowed is 0 to {self.ranks - 1}")
        if self.step is not None and self.step < 0:
            raise DrillError(f"--step {self.step}: allowed is 0 or more")
        if self.step is not None and self.moment:
            raise DrillError("--step and --moment both say when the fault comes: give one")
        if self.notify and not self.drill.expected.is_incident:
            raise DrillError(f"--notify: {self.drill.name} opens no incident, so it has no alert")


def run_drill(
    request: Request,
    display: Display,
    before_end: Callable[[DrillRun], None] | None = None,
    environment: Environment | None = None,
) -> Result:
    """Run a drill and judge the verdict.

    `before_end` is called after the verdict is final, before the job is ended. `environment` is a
    shared one, for a drill that can share; it outlives the drill. Without it, the drill starts and
    ends its own tower and agents.
    """
    if environment and not can_share(request):
        raise DrillError(f"{request.drill.name} needs a tower and agents of its own")
    drill, config = request.drill, request.config
    backend = choose_backend(
        request.backend, drill.backends, networked=drill.networked, libraries=drill.libraries
    )
    changed = changed_settings(config, dict(drill.detection(config.drill)))
    lines = opening(drill, request.ranks, request.nodes, backend)
    with _temporary_folder() as folder, _ended_by_sigterm(), contextlib.closing(display):
        display.open([*lines, *filter(None, [settings_line(changed)])])
        borrowed = contextlib.nullcontext(environment) if environment else None
        with borrowed or make_environment(request, folder) as present:
            run, watch = _prepare_run(request, backend, present, folder, display)
            results: list[Result] = []

            def show(staying: list[str]) -> None:
                results.append(_judged(request, backend, run, changed))
                display.finish(results[0], closing(len(DRILLS), _name_program()), staying)

            def stay(_: DrillRun) -> None:
                watch.read_incidents()
                show(_describe_staying(run))
                _wait_for_interrupt(present)

            _act(request, run, stay if request.stay else before_end)
            watch.read_incidents()
        if not results:
            show([])
    return results[0]


def _describe_staying(run: DrillRun) -> list[str]:
    incidents = [str(one.get("id")) for one in run.observed.incidents]
    incident = incidents[0] if incidents else ""
    return describe_staying(run.environment.tower_url, run.job.name, incident, _name_program())


def _wait_for_interrupt(environment: Environment) -> None:
    """Wait for Ctrl-C or SIGTERM. Raises DrillError if a part of the product ends by itself."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            environment.check()
            time.sleep(CHECK_S)


def can_share(request: Request) -> bool:
    """Return whether other drills with these settings can use the same tower and agents."""
    drill, config = request.drill, request.config
    unchanged = drill.detection(config.drill).items() <= config.detection.items()
    return unchanged and not request.notify and not drill.needs_own_environment(request.backend)


def make_environment(request: Request, folder: Path, *, shared: bool = False) -> Environment:
    """Prepare tower and agents for a drill."""
    drill, config = request.drill, request.config
    environment = Environment(
        folder,
        nodes=request.nodes,
        interval_s=config.drill.agent_interval_s,
        detection={**config.detection, **drill.detection(config.drill)},
        forwarded=drill.forwarded,
        start_deadline_s=config.drill.start_deadline_s,
        clock=WallClock(folder) if drill.own_clock else None,
        shared=shared,
    )
    if drill.own_gpus:
        environment.kernel_logs = KernelLogs(folder)
        environment.gpus = Gpus(folder)
    environment.recordings = request.record
    if request.notify:
        environment.alerts, environment.secrets = request.notify.table, request.notify.secrets
    return environment


def _name_program() -> str:
    """Return the command that a person types. The environment of `make` is not on PATH."""
    if shutil.which("watchtower"):
        return "watchtower"
    beside = os.path.join(os.path.dirname(sys.executable), "watchtower")
    return os.path.relpath(beside) if os.path.exists(beside) else "python -m watchtower"


def _prepare_run(
    request: Request, backend: str, environment: Environment, folder: Path, display: Display
) -> tuple[DrillRun, Watch]:
    drill, settings = request.drill, request.config.drill
    rank = random.randrange(request.ranks) if request.rank is None else request.rank
    step = choose_step(request)
    name = f"drill-{secrets.token_hex(4)}"
    layout = Layout(ranks=request.ranks, nodes=request.nodes)
    silenced = {} if settings.collective_log else NO_LOG
    job = TrainingJob(
        name,
        backend,
        layout,
        folder,
        parallelism=drill.parallelism,
        bare=drill.bare_launch or backend in drill.networked,
        named=drill.named,
        environment={**(environment.clock.environment if environment.clock else {}), **silenced},
    )
    job.environment_folder, job.renamed = environment.folder, drill.renamed
    client = PatientClient(environment.tower_url)
    alone = not environment.shared and not drill.attacked
    watch = Watch(client, name, drill.expected.statuses, alone=alone)
    variables = Variables(settings=settings, rank=rank, ranks=request.ranks, step=step)
    run = DrillRun(drill, variables, environment, job, watch, display)
    if request.moment:
        run.moment, run.expected = request.moment, request.moment.expect(drill.expected)
    return run, watch


def choose_step(request: Request) -> int:
    """Return the step before which the fault comes.

    Unless it is given, it is a random one after the warm-up. A job without heartbeats has then
    passed its startup grace, so that the delay of the verdict is that of the detection.
    """
    drill, settings = request.drill, request.config.drill
    given = drill.step if request.step is None else request.step
    if request.moment:
        given = request.moment.step
    if given is not None:
        return given
    steps = settings.warmup_steps * drill.warmups
    if drill.sampled:
        steps = max(steps, ceil(settings.sampled_s / settings.step_s))
    return steps + random.randrange(CHANCE_STEPS + 1)


def _act(request: Request, run: DrillRun, before_end: Callable[[DrillRun], None] | None) -> None:
    is_sent = False
    try:
        request.drill.act(run)
        if request.notify:
            is_sent = wait_for_alert(run, request.notify)
        if before_end:
            before_end(run)
    finally:
        run.end()
    if request.notify and is_sent:
        wait_for_end(run, request.notify)


def _judged(request: Request, backend: str, run: DrillRun, changed: dict[str, object]) -> Result:
    drill, observed = request.drill, run.observed
    ranks = run.ranks if drill.is_fault else ()
    answer = Answer(
        verdict=observed.verdict,
        statuses_seen=tuple(observed.statuses),
        incidents=tuple(str(one.get("summary")) for one in observed.incidents),
        fault_to_verdict_s=observed.fault_to_verdict_s,
        complaints=tuple(observed.complaints),
    )
    return Result(
        drill=drill,
        backend=backend,
        ranks=ranks,
        observed=observed,
        judgement=judge(run.expected, ranks, answer),
        settings_changed=changed,
    )


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="watchtower-drill-"))
    tidier = start_fixture(
        "tidier.py", [str(folder)], folder
    )  # removes the folder if the drill is killed
    try:
        yield folder
    finally:
        tidier.end()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the drill as Ctrl-C does, so that all started processes are ended."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
