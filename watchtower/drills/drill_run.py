"""A drill, and one run of it with the actions that it can do: start, wait, disturb, watch.

Every wait polls the tower ten times a second and has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

from watchtower.drills.children import Child, first_words, start_fixture
from watchtower.drills.display import Display
from watchtower.drills.environment import Environment
from watchtower.drills.errors import DrillError
from watchtower.drills.job import TrainingJob
from watchtower.drills.moments import Moment
from watchtower.drills.network import Network
from watchtower.drills.setup import CALM, DrillSetup, Plan, Variables, plan_of_backend
from watchtower.drills.watch import Observed, Watch

FIXTURE_DEADLINE_S = 10.0
"""Seconds for a fixture to start: it is a small script."""
EXPORTED_S = 5.0
STEP_POLL_S = 0.005
"""Seconds between polls for the end of a step: a small part of the next step."""
SLACK = 4.0
"""A step may take this many times its mean before the drill fails."""


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
        """The right answer. Facts that are known only while the job runs are added to it."""
        self.moment: Moment | None = None
        """A moment of the fault that the drill itself does not choose."""
        self.variables = variables
        self.settings = variables.settings
        self.rank = variables.rank
        self.node = job.layout.node_of(variables.rank)
        self.ranks = _blamed(drill, job, self.rank)
        """The ranks with the fault, or those that are to blame together."""
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
        """Start the job with the drill's plan. `changes` apply to this start only."""
        if self.job.backend in self.drill.networked:
            self.job.network = Network(**self.set_up("network.py", str(self.job.layout.ranks)))
        self.job.launch({**self._plan(), **changes}, missing, restart_counts)

    def launch_beside(
        self, suffix: str = "beside", *, same_name: bool = False, **changes: object
    ) -> TrainingJob:
        """Start another job on the same nodes, as the same launcher would do.

        `changes` apply to its plan.
        """
        job = self.job.make_twin(suffix, same_name=same_name)
        self._beside.append(job)
        job.launch({**self._plan(), **changes})
        return job

    def see_beside(self) -> Observed:
        """Run a second job of the same kind until its final verdict; return the observations."""
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
        """Wait until the step of the fault begins: until all ranks have started for step 0."""
        step = self.variables.step
        if step:
            self.wait_for_step(step - 1)
        else:
            self.wait_until(self.job.has_started, self.settings.start_deadline_s, "start")

    # Disturbing

    def fault(self, text: str) -> None:
        """Record that the drill itself causes the fault now."""
        self._note_fault(time.monotonic(), text)

    def note(self, text: str) -> None:
        """Show what the drill does."""
        self._display.note(text, self.observed)

    def trace(self, rank: int) -> None:
        """Let another process trace a rank and stop it."""
        held = self.set_up("tracer.py", str(self.job.pid(rank)))
        self._note_fault(held["monotonic_s"], f"rank {rank} is held by a debugger")

    def freeze(self, rank: int) -> None:
        """Freeze a rank from outside."""
        held = self.set_up("control_group.py", "freeze", str(self.job.pid(rank)))
        self._note_fault(held["monotonic_s"], f"rank {rank} is frozen")

    def limit_memory(self, rank: int, size: int) -> None:
        """Allow a rank to allocate only `size` bytes more."""
        self.set_up("control_group.py", "limit", str(self.job.pid(rank)), str(size))

    def forbid_tracing(self, rank: int) -> None:
        """Record a complaint if a process traces this rank. It cannot stop, so it would stay
        traced.
        """
        self._untouchable = self.job.pid(rank)

    def vanish(self) -> None:
        """Kill the ranks with the fault so that no peer is notified."""
        if self.job.network:
            for rank in self.ranks:
                self.job.network.cut(rank)
        self.job.kill_at_once(self.ranks)

    def abort(self) -> None:
        """Abort the rank with the fault so that its peers continue to wait for it."""
        if self.job.network:
            self.job.network.cut(self.rank)
        self.job.signal(self.rank, Signals.SIGABRT)

    def cut(self) -> None:
        """Cut the link of the rank with the fault."""
        if self.job.network:
            self.job.network.cut(self.rank)

    def cut_all(self) -> None:
        """Cut every link at one moment, early in a step, so that no collective is half done."""
        begun = self.job.log.step
        deadline = time.monotonic() + self.settings.start_deadline_s
        while self.job.log.step == begun and time.monotonic() < deadline:
            self.job.poll()
            time.sleep(STEP_POLL_S)
        if self.job.network:
            self.job.network.cut_all()

    def set_up(self, script: str, *words: str) -> dict[str, Any]:
        """Start a fixture and return the values that it prints. It is ended before the job."""
        fixture = start_fixture(script, words, self.job.folder)
        self._fixtures.append(fixture)
        self.wait_until(lambda: first_words(fixture) is not None, FIXTURE_DEADLINE_S, fixture.name)
        return first_words(fixture) or {}

    def signal_fixtures(self, number: Signals) -> None:
        """Send a signal to every fixture."""
        for fixture in self._fixtures:
            fixture.signal(number)

    def step_clock(self, seconds: float) -> None:
        """Change the wall clock of all processes in the drill by `seconds`."""
        self.note(f"the wall clock jumps by {seconds:+g} s")
        if self.environment.clock:
            self.environment.clock.shift(seconds)

    def want_mentioned(self, word: str) -> None:
        """Require a word in the verdict that is known only now, such as a pid."""
        self.expected = replace(self.expected, mentions=(*self.expected.mentions, word))

    def cannot_tell_links_from_devices(self) -> None:
        """Accept `unknown` too where collectives are queued: hosts show neither."""
        if self.job.backend == "queued":
            self.expected = replace(self.expected, or_causes=("unknown",), domain=None)

    def complain(self, text: str) -> None:
        """Record a problem that makes the result wrong, whatever the verdict is."""
        self.observed.complaints.append(text)

    # Waiting

    def wait_for_fault(self) -> None:
        """Wait until the program reports its fault."""
        self._wait_for_pace(lambda: self.job.log.fault_at is not None, self.variables.step, "fault")
        self._note_fault(self.job.log.fault_at or 0.0, self.drill.shows)

    def wait_for_step(self, step: int, extra_s: float = 0.0) -> None:
        """Wait until the job has done this step. `extra_s`: the duration of pauses before it."""

        def met() -> bool:
            return self.job.log.step is not None and self.job.log.step >= step

        self._wait_for_pace(met, step, f"step {step}", extra_s)

    def wait_for_final(self) -> None:
        """Wait for a verdict that stays final, at most as long as the settings allow."""
        settings = self.settings
        until = time.monotonic() + settings.verdict_deadline_s
        while time.monotonic() < until:
            self._poll()
            since = self.observed.final_since
            if since is not None and time.monotonic() - since >= settings.linger_s:
                return

    def forget_final(self) -> None:
        """Wait for the final verdict again: a restarted tower must find it again."""
        self.observed.final_since = None
        self.observed.statuses.append("unseen")

    def follow(self, job: TrainingJob) -> None:
        """Ask for the verdict on this job from now on, under the tower's name for it."""
        self.observed.job = self.find_job(job) or self.observed.job

    def find_job(self, job: TrainingJob) -> str | None:
        """Return the tower's name for a job without a name: the job with its processes."""
        return self._watch.find_job(set(job.log.pids.values()))

    def is_calm(self, job: TrainingJob) -> bool:
        """Return whether the tower finds nothing wrong with a second job."""
        return self._watch.find_status(self.find_job(job) or "") in CALM

    def wait_until_known(self, job: TrainingJob) -> None:
        """Wait until the tower knows the processes of all ranks: it never misses an unknown one."""
        known_s = self.settings.start_deadline_s  # 16 processes start on one machine
        self.wait_until(lambda: self.find_job(job) is not None, known_s, "job in the tower")

    def wait_for_training(self, job: TrainingJob) -> None:
        """Wait until a second job has trained as long as the first one must."""
        self._wait_for_pace(lambda: (job.log.step or 0) >= self.variables.step, 0, "second job")

    def count_jobs(self, owner: str) -> int:
        """Return how many live jobs of this owner the tower knows."""
        return self._watch.count_jobs(owner)

    def check_series(self, name: str = "watchtower_incident_open", label: str = "") -> None:
        """Record a complaint if the metrics do not show the job's incident, for its alert."""
        if not self.wait_for(lambda: self._watch.has_series(name, label), EXPORTED_S):
            self.complain(f"the incident has no series {name} on /metrics")

    def compare(self, usual: Observed) -> None:
        """Record a complaint if the verdict was slower than usual by more than the allowed
        delay.
        """
        taken_s, usual_s = self.observed.fault_to_verdict_s, usual.fault_to_verdict_s
        allowed_s = (usual_s or 0.0) + self.settings.neighbour_delay_s
        if taken_s is not None and taken_s > allowed_s:
            self.complain(f"the verdict took {taken_s} s, allowed are {allowed_s:.1f} s")

    def check_outage(self, count: int, domain: str, deadline_s: float) -> None:
        """Record a complaint if this job is not in one outage with `count` incidents and this
        domain.
        """
        until = time.monotonic() + deadline_s
        found = self._watch.find_outage()
        while (found is None or found.jobs < count) and time.monotonic() < until:
            self._poll()
            found = self._watch.find_outage()
        if found is None or found.jobs != count:
            jobs = found.jobs if found else 0
            self.complain(f"the outage has {jobs} incidents, expected {count}")
            return
        self.note(f"one outage: {count} jobs hang on {found.cause}")
        if found.domain != domain:
            self.complain(f"the outage has the domain {found.domain}, expected {domain}")

    def incidents(self) -> list[dict[str, object]]:
        """Return the full incidents of the job from the tower, newest first."""
        return self._watch.incidents_in_full()

    def read_incident(self, incident: str) -> None:
        """Use this incident's current report as the answer to be judged."""
        found = [one for one in self.incidents() if one.get("id") == incident]
        verdict = found[0].get("verdict") if found else None
        if not isinstance(verdict, dict):
            self.complain(f"incident {incident} cannot be read any more")
            return
        self.observed.verdict = verdict
        if len(self.incidents()) > 1:
            self.complain("a second incident was opened")

    def wait_for_status(self, statuses: tuple[str, ...], deadline_s: float) -> None:
        """Wait until the job has one of these statuses. A missing status is judged later."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            self._poll()
            if self.observed.statuses and self.observed.statuses[-1] in statuses:
                return

    def wait_for_end(self, deadline_s: float) -> None:
        """Wait until every process of the job has ended."""
        self.wait_until(self.job.has_ended, deadline_s, "the end of the job")

    def watch_for(self, duration_s: float) -> None:
        """Only watch."""
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            self._poll()

    def wait_until(self, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Watch until the condition is true. Raises DrillError at the deadline."""
        until = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > until:
                raise DrillError(f"no {what} within {deadline_s:g} s", self.job.tail())
            self._poll()

    def wait_for(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        """Poll until the condition is true. Return False at the deadline."""
        until = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > until:
                return False
            self.environment.check()
            time.sleep(self.settings.poll_s)
        return True

    def are_incidents_closed(self) -> bool:
        """Return whether every incident of the job is closed."""
        self._watch.read_incidents()
        return all(one.get("closed_at") for one in self.observed.incidents)

    def read_metric(self, series: str) -> float | None:
        """Return the value of one series of the tower; None if it has no such series."""
        return self._watch.read_metric(series)

    def end(self) -> None:
        """End the job and everything that the drill started with it."""
        for fixture in self._fixtures:
            fixture.end()
        for job in (*self._beside, self.job):
            job.end()

    def _poll(self) -> None:
        started = time.monotonic()
        self.environment.check()
        for job in (self.job, *self._beside):
            job.poll()
        self._watch.poll()
        self._check_tracer()
        self._display.show(self.observed)
        time.sleep(max(0.0, self.settings.poll_s - (time.monotonic() - started)))

    def _check_tracer(self) -> None:
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
                # Its last output may report the fault: read it before the drill fails.
                self.job.poll()
                if not condition():
                    raise DrillError(f"the job failed before its {what}", self.job.tail())
            return False

        settings = self.settings
        deadline_s = settings.start_deadline_s + step * settings.step_s * SLACK + extra_s
        self.wait_until(met, deadline_s, what)

    def _note_fault(self, moment: float, text: str) -> None:
        self.observed.fault_at = moment
        self._display.note(f"fault: {text}", self.observed)

    def _plan(self) -> Plan:
        settings = self.settings
        pace: Plan = {"step_s": settings.step_s, "jitter": settings.jitter}
        pace |= plan_of_backend(self.job.backend, settings)
        if not settings.heartbeats:
            pace |= {"beats": False, "imports_client": settings.collective_log}
        plan = pace | self.drill.plan(self.variables)
        return self.moment.move(plan) if self.moment else plan


def _blamed(drill: DrillSetup, job: TrainingJob, rank: int) -> tuple[int, ...]:
    if drill.whole_node:
        return tuple(job.layout.local_ranks(job.layout.node_of(rank)))
    return drill.blames(rank) if drill.blames else (rank,)


def tracer_of(pid: int) -> int:
    """Return the pid of the process that traces this one; 0 without a tracer."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(text.partition("TracerPid:")[2].split(maxsplit=1)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill(DrillSetup):
    """One drill: its setup, and its actions. `act` is called with each run of it."""

    act: Callable[[DrillRun], None]
