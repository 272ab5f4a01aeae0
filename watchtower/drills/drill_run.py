"""One run of a drill, and what the drill does with it: start, wait, disturb, watch.

Every wait polls the tower ten times a second and has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any

from watchtower.drills.children import Child, first_words, start_fixture
from watchtower.drills.display import Display
from watchtower.drills.environment import Environment
from watchtower.drills.errors import DrillError
from watchtower.drills.job import TrainingJob
from watchtower.drills.network import Network
from watchtower.drills.setup import DrillSetup, Plan, Variables
from watchtower.drills.watch import Observed, Watch

FIXTURE_DEADLINE_S = 10.0
"""How long a fixture may take to start: it is a small script."""
STEP_POLL_S = 0.005
"""How often to poll for a step that has just ended: a small part of the next one."""
SLACK = 4.0
"""A step may take this many times its mean before the drill gives up on its own machine."""


class DrillRun:
    """One run of a drill."""

    def __init__(
        self,
        drill: DrillSetup,
        variables: Variables,
        environment: Environment,
        job: TrainingJob,
        watch: Watch,
        display: Display,
    ) -> None:
        self.drill = drill
        self.expected = drill.expected
        """The right answer; what is only known once the job runs is added to it."""
        self.variables = variables
        self.settings = variables.settings
        self.rank = variables.rank
        self.node = job.layout.node_of(variables.rank)
        self.ranks = _blamed(drill, job, self.rank)
        """The ranks that the fault goes to, or that are to blame together."""
        self.environment = environment
        self.job = job
        self.observed = watch.observed
        self._watch = watch
        self._display = display
        self._fixtures: list[Child] = []
        self._beside: list[TrainingJob] = []
        self._untouchable: int | None = None

    # Starting

    def launch(
        self,
        *,
        missing: frozenset[int] = frozenset(),
        restart_counts: tuple[int, ...] = (),
        **changes: object,
    ) -> None:
        """Start the job with the drill's plan; `changes` are for this start only."""
        if self.job.backend in self.drill.networked:
            self.job.network = Network(**self.set_up("network.py", str(self.job.layout.ranks)))
        self.job.launch({**self._plan(), **changes}, missing, restart_counts)

    def launch_beside(self) -> TrainingJob:
        """Start a second job on the same nodes, as the same launcher would."""
        job = self.job.make_twin()
        self._beside.append(job)
        job.launch(self._plan())
        return job

    def see_beside(self) -> Observed:
        """Let a second job of the same kind come to its final verdict; return what was seen."""
        job = self.launch_beside()
        watch = self._watch.make_twin(job.name)

        def is_final() -> bool:
            watch.poll()
            watch.observed.fault_at = job.log.fault_at
            return watch.observed.final_since is not None

        self._wait_for_pace(is_final, self.variables.step, "verdict on the job beside")
        self._beside.remove(job)
        job.end()
        return watch.observed

    def warm_up(self) -> None:
        """Wait until the job has trained long enough for its pace to be known."""
        self.wait_for_step(self.variables.step)

    # Disturbing

    def fault(self, text: str) -> None:
        """Note that the fault comes now, brought by the drill itself."""
        self._note_fault(time.monotonic(), text)

    def note(self, text: str) -> None:
        """Tell whoever watches what the drill does."""
        self._display.note(text, self.observed)

    def trace(self, rank: int) -> None:
        """Let another process trace a rank and hold it."""
        held = self.set_up("tracer.py", str(self.job.pid(rank)))
        self._note_fault(held["monotonic_s"], f"rank {rank} is held by a debugger")

    def freeze(self, rank: int) -> None:
        """Freeze a rank from outside."""
        held = self.set_up("freezer.py", str(self.job.pid(rank)))
        self._note_fault(held["monotonic_s"], f"rank {rank} is frozen")

    def forbid_tracing(self, rank: int) -> None:
        """Complain if anybody tries to trace a rank: it would stay so, the rank cannot stop."""
        self._untouchable = self.job.pid(rank)

    def vanish(self) -> None:
        """Kill the ranks that the fault goes to so that no peer hears of it."""
        if self.job.network:
            for rank in self.ranks:
                self.job.network.cut(rank)
        self.job.kill_at_once(self.ranks)

    def abort(self) -> None:
        """Let the rank of the fault abort so that its peers go on waiting for it."""
        if self.job.network:
            self.job.network.cut(self.rank)
        self.job.signal(self.rank, Signals.SIGABRT)

    def cut_all(self) -> None:
        """Take every link down at one moment, early in a step: no collective is half done then."""
        begun = self.job.log.step
        deadline = time.monotonic() + self.settings.start_deadline_s
        while self.job.log.step == begun and time.monotonic() < deadline:
            self.job.poll()
            time.sleep(STEP_POLL_S)
        if self.job.network:
            self.job.network.cut_all()

    def set_up(self, script: str, *words: str) -> dict[str, Any]:
        """Start a fixture and wait for what it has to say; it is ended before the job is."""
        fixture = start_fixture(script, words, self.job.folder)
        self._fixtures.append(fixture)
        self.wait_until(lambda: first_words(fixture) is not None, FIXTURE_DEADLINE_S, fixture.name)
        return first_words(fixture) or {}

    def signal_fixtures(self, number: Signals) -> None:
        """Send a signal to everything that was set up."""
        for fixture in self._fixtures:
            fixture.signal(number)

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock of everything in the drill."""
        self.note(f"the wall clock jumps by {seconds:+g} s")
        if self.environment.clock:
            self.environment.clock.shift(seconds)

    def want_mentioned(self, word: str) -> None:
        """Ask for a word in the verdict that nobody could know beforehand, such as a pid."""
        self.expected = replace(self.expected, mentions=(*self.expected.mentions, word))

    def complain(self, text: str) -> None:
        """Note something that is wrong whatever the verdict says."""
        self.observed.complaints.append(text)

    # Waiting

    def wait_for_fault(self) -> None:
        """Wait until the program says that its fault has come."""
        self._wait_for_pace(lambda: self.job.log.fault_at is not None, self.variables.step, "fault")
        self._note_fault(self.job.log.fault_at or 0.0, self.drill.shows)

    def wait_for_step(self, step: int, extra_s: float = 0.0) -> None:
        """Wait until the job has done this step; `extra_s` is what pauses on the way may take."""
        self._wait_for_pace(lambda: (self.job.log.step or 0) >= step, step, f"step {step}", extra_s)

    def wait_for_final(self) -> None:
        """Wait for the verdict that stands, at most as long as the settings allow."""
        settings = self.settings
        until = time.monotonic() + settings.verdict_deadline_s
        while time.monotonic() < until:
            self._look()
            since = self.observed.final_since
            if since is not None and time.monotonic() - since >= settings.linger_s:
                return

    def forget_final(self) -> None:
        """Ask for the final verdict anew: a tower that was restarted has to find it again."""
        self.observed.final_since = None
        self.observed.statuses.append("unseen")

    def follow(self, job: TrainingJob) -> None:
        """Ask for the verdict on this job from now on, under the tower's name for it."""
        self.observed.job = self.find_job(job) or self.observed.job

    def find_job(self, job: TrainingJob) -> str | None:
        """What the tower calls a job that was given no name: the one with its processes."""
        return self._watch.find_job(set(job.log.pids.values()))

    def wait_for_training(self, job: TrainingJob) -> None:
        """Wait until a job beside the first has trained as long as the first has to."""
        self._wait_for_pace(lambda: (job.log.step or 0) >= self.variables.step, 0, "second job")

    def count_jobs(self, owner: str) -> int:
        """How many live jobs of this owner the tower knows."""
        return self._watch.count_jobs(owner)

    def check_series(self) -> None:
        """Complain if the metrics do not show the job's open incident."""
        if not self._watch.has_series():
            self.complain("the open incident has no series on /metrics")

    def compare(self, usual: Observed) -> None:
        """Complain if the verdict took longer than the usual one, by more than is allowed."""
        taken_s, usual_s = self.observed.fault_to_verdict_s, usual.fault_to_verdict_s
        allowed_s = (usual_s or 0.0) + self.settings.neighbour_delay_s
        if taken_s is not None and taken_s > allowed_s:
            self.complain(f"the verdict took {taken_s} s, at most {allowed_s:.1f} s are right")

    def incidents(self) -> list[dict[str, object]]:
        """The incidents of the job in full, newest first, as the tower tells them now."""
        return self._watch.incidents_in_full()

    def read_incident(self, incident: str) -> None:
        """Take what this incident reports now as the answer to be judged."""
        found = [one for one in self.incidents() if one.get("id") == incident]
        verdict = found[0].get("verdict") if found else None
        if not isinstance(verdict, dict):
            self.complain(f"incident {incident} cannot be read any more")
            return
        self.observed.verdict = verdict
        if len(self.incidents()) > 1:
            self.complain("a second incident was opened")

    def wait_for_status(self, statuses: tuple[str, ...], deadline_s: float) -> None:
        """Wait until the job has one of these statuses; judged later whether it has."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            self._look()
            if self.observed.statuses and self.observed.statuses[-1] in statuses:
                return

    def wait_for_end(self, deadline_s: float) -> None:
        """Wait until every process of the job is gone."""
        self.wait_until(self.job.has_ended, deadline_s, "the end of the job")

    def watch_for(self, duration_s: float) -> None:
        """Only watch."""
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            self._look()

    def wait_until(self, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Watch until the condition holds."""
        until = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > until:
                raise DrillError(f"no {what} within {deadline_s:g} s", self.job.tail())
            self._look()

    def end(self) -> None:
        """End the job and whatever the drill started beside it."""
        for fixture in self._fixtures:
            fixture.end()
        for job in (*self._beside, self.job):
            job.end()

    def _look(self) -> None:
        started = time.monotonic()
        self.environment.check()
        for job in (self.job, *self._beside):
            job.poll()
        self._watch.poll()
        self._look_for_tracer()
        self._display.show(self.observed)
        time.sleep(max(0.0, self.settings.poll_s - (time.monotonic() - started)))

    def _look_for_tracer(self) -> None:
        if self._untouchable and (tracer := tracer_of(self._untouchable)):
            self.complain(f"pid {self._untouchable} was traced by pid {tracer}")
            self._untouchable = None

    def _wait_for_pace(
        self, condition: Callable[[], bool], step: int, what: str, extra_s: float = 0.0
    ) -> None:
        def met() -> bool:
            if condition():
                return True
            if self.job.has_failed():
                # Its last words may tell of the fault: read them before giving up.
                self.job.poll()
                if not condition():
                    raise DrillError(f"the job failed before its {what}", self.job.tail())
            return False

        settings = self.settings
        deadline_s = settings.start_deadline_s + step * settings.step_s * SLACK + extra_s
        self.wait_until(met, deadline_s, what)

    def _note_fault(self, moment: float, text: str) -> None:
        self.observed.fault_at = moment
        self.observed.fault_text = text
        self._display.note(f"fault: {text}", self.observed)

    def _plan(self) -> Plan:
        settings = self.settings
        pace: Plan = {"step_s": settings.step_s, "jitter": settings.jitter}
        return pace | self.drill.plan(self.variables)


def _blamed(drill: DrillSetup, job: TrainingJob, rank: int) -> tuple[int, ...]:
    if drill.whole_node:
        return tuple(job.layout.local_ranks(job.layout.node_of(rank)))
    return drill.blames(rank) if drill.blames else (rank,)


def tracer_of(pid: int) -> int:
    """The process that traces this one, 0 when nobody does or it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(text.partition("TracerPid:")[2].split(maxsplit=1)[0])
