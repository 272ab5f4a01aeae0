"""When is a job that makes no step dead? One ordered table, of which the first fitting row decides.

A row answers for first steps, late agents, marked phases, jobs without heartbeats and steps of a
known length alike. It says how long the suspect may be still until the job is suspect, and how long
a suspicion may last until it is an incident, with the reason as a sentence. Where no row gives the
first number, the job is suspect when its time is over (see `detector`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from watchtower.diagnosis.causes import entry_of
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.evidence.kernel import PROCESSES, STORAGE
from watchtower.jobs.pace import Pauses
from watchtower.jobs.stall_context import StallContext
from watchtower.policy import Policy
from watchtower.wire.verdict import Cause

LONG_CLASSES = frozenset({"compile", "checkpoint", "network", "child"})
"""Frame classes of work that usually takes long, as long as something moves."""

URGENT_CLASSES = frozenset({"dataloader"})
"""Frame classes without extra patience even if they transfer data. A batch must arrive in time."""

WAITING_PLACES = frozenset({"device", "waiting"})
"""Names in `Diagnosis.places` of ranks that wait for a device or for other ranks."""

LOCAL_WAITS = PROCESSES - {"poll"}
"""Kernel waits for something on the same node that answers at once in a healthy program: a lock, a
child, the other end of a pipe. What these wait for themselves was checked before."""

SPLITS = frozenset(
    {
        Cause.MISMATCHED_COLLECTIVE,
        Cause.CONDITIONAL_COLLECTIVE,
        Cause.COLLECTIVE_CYCLE,
        Cause.UNEVEN_INPUTS,
        Cause.MISSING_SEND,
    }
)
"""Causes in which ranks wait in different calls for each other."""

PROVEN = 0.9
"""Least confidence at which they do without doubt: records of both sides show it."""

LOGS_WAIT_S = 10.0
"""Seconds of patience for collective logs that were not read, if the cause is unknown without them:
they are dumped again meanwhile. An alert should name the rank."""


def cannot_go_on(diagnosis: Diagnosis) -> bool:
    """Return whether a job cannot recover by itself.

    It can if only the load of a GPU shows that it has no work: a copy to its host does not count as
    load.
    """
    return entry_of(diagnosis.cause).cannot_go_on and not diagnosis.is_shown_by_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a job may be still, and the reason for it."""

    row: str
    """Name of the row that decided."""
    hung_s: float
    """Seconds from suspicion to incident."""
    reason: str
    suspect_s: float = math.inf
    """Seconds for which the suspect is still, or the job if it moves, until the job is suspect.
    Infinity: only the time of a step decides."""
    named_s: float = 0.0
    """Seconds without a step until the suspect is named. Infinity: only an incident names it."""
    is_work: bool = False
    """The suspect works."""


@dataclass(slots=True)
class WorkTime:
    """When the top suspect worked during a stall, and its marked phases."""

    name: str = ""
    """Phase in which the top suspect was last; empty if it was in none."""
    until: float = -math.inf
    """When the top suspect last worked, moved in a phase, or left one."""
    _is_inside: bool = False

    def take(self, phase: str, diagnosis: Diagnosis, now: float) -> None:
        """Add the present phase of the top suspect, and whether it works.

        Other ranks do not count: any of them could delay an incident by its phases.
        """
        has_left = self._is_inside and not phase
        if has_left or diagnosis.suspects_work or (phase and diagnosis.suspects_moving):
            self.until = now
        self.name, self._is_inside = phase or self.name, bool(phase)


@dataclass(frozen=True, slots=True)
class Still:
    """One job that makes no step: its phase and the evidence, as the rows read them."""

    diagnosis: Diagnosis
    context: StallContext
    policy: Policy

    @property
    def is_shown_by_gpus(self) -> bool:
        """Whether the GPUs show the hang in usual steps.

        All hosts wait for their devices, and the GPUs of the others have waited for seconds. The
        time of some steps is enough for a kernel that ends. First steps and marked phases have
        their own patience.
        """
        is_usual = not (self.context.starting or self.context.phase)
        return self.diagnosis.is_shown_by_gpus and is_usual

    @property
    def is_blocked(self) -> bool:
        """Whether the suspects do not move, and others wait for them.

        Before the first steps it is not always known that the others wait: they may spin.
        """
        diagnosis = self.diagnosis
        waits = diagnosis.peers_waiting or self.context.starting
        return bool(diagnosis.suspects) and waits and not diagnosis.suspects_moving

    @property
    def is_early(self) -> bool:
        """Whether neither a step time nor samples of the job at work are known."""
        context = self.context
        is_new = context.no_heartbeat and context.is_new
        return bool(context.starting or context.phase or is_new)

    @property
    def is_blocked_early(self) -> bool:
        """Whether the suspects do not move, where only the evidence can show that it is a hang."""
        return self.is_early and self.is_blocked

    @property
    def works(self) -> bool:
        """Whether the suspects work: they do more than to move."""
        diagnosis, kind = self.diagnosis, self.diagnosis.suspect_class
        if kind in LONG_CLASSES:
            return diagnosis.suspects_moving or self.is_shown_by_gpus
        transfers = diagnosis.suspects_transfer and kind not in URGENT_CLASSES
        return diagnosis.suspects_moving and (diagnosis.suspects_work or transfers)

    @property
    def work_s(self) -> float:
        """Patience with a suspect that works."""
        context, policy = self.context, self.policy
        is_first = not context.has_stepped or self.diagnosis.suspect_class in LONG_CLASSES
        if context.starting and is_first:
            return policy.startup_patience_s
        return policy.phase_patience_s if context.phase else policy.class_patience_s

    @property
    def gpu_s(self) -> float:
        """Patience with a suspect whose GPU differs from the others."""
        if self.context.no_heartbeat or not self.context.typical_s:
            return max(self.policy.moving_floor_s, self.context.longest_run_s)
        return self.still_s

    @property
    def still_s(self) -> float:
        """Patience with a suspect that cannot go on, or that others wait for."""
        typical_s = self.context.typical_s
        return max(self.policy.hung_floor_s, self.policy.hung_factor * typical_s)

    @property
    def moving_s(self) -> float:
        """Patience with a suspect that moves, and makes no step."""
        typical_s = self.context.typical_s
        return max(self.policy.moving_floor_s, self.policy.moving_factor * typical_s)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    name: str
    fits: Callable[[Still], bool]
    hung_s: Callable[[Still], float]
    """Seconds from suspicion to incident."""
    reason: Callable[[Still], str]
    suspect_s: Callable[[Still], float] = lambda _: math.inf
    named_s: Callable[[Still], float] = lambda _: 0.0
    is_work: bool = False
    """The suspect works. Only an incident names it."""
    is_learned: bool = True
    """A longer pause that the job has made before makes the patience longer."""


def _explain_still(still: Still) -> str:
    """Return the reason for the shortest patience, in the words of the summary."""
    diagnosis = still.diagnosis
    waiting = diagnosis.waiting_text or "other ranks wait"
    if not diagnosis.suspects:
        return waiting
    whose = "suspect does" if len(diagnosis.suspects) == 1 else "suspects do"
    return f"the {whose} not move and {waiting}"


def _explain_no_wait(still: Still) -> str:
    """Return the reason for the longest patience, in agreement with the summary."""
    if still.diagnosis.peers_waiting:
        return "no rank is known to hold up the others"
    if not still.diagnosis.waiting_text:
        return "no rank is waiting for another"
    return f"{still.diagnosis.waiting_text}, but they may be working there"


def _explain_work(still: Still) -> str:
    """Return the reason for patience with a suspect that works."""
    diagnosis, context = still.diagnosis, still.context
    if context.phase:
        return f"the suspect works in phase {context.phase}"
    if diagnosis.suspect_class in LONG_CLASSES:
        return f"{diagnosis.suspect_class} work takes long"
    if diagnosis.suspects_transfer:
        return "the suspect transfers data through the network"
    return "the suspect works"


def _explain_gpus(still: Still) -> str:
    is_known = still.context.typical_s and not still.context.no_heartbeat
    text = "all hosts wait for their GPUs, and the GPU of the suspect differs from the others"
    return text if is_known else f"{text}; no step is known"


def _says(text: str) -> Callable[[Still], str]:
    """Return a reason with the fields `{phase}` and `{kind}` (the frame class of the suspect)."""
    return lambda still: text.format(phase=still.context.phase, kind=still.diagnosis.suspect_class)


def _is_local(still: Still) -> bool:
    """Return whether the suspect waits for something on its node, or sleeps nearly for ever."""
    wait_s = still.diagnosis.suspect_wait_s
    sleeps = wait_s is not None and wait_s > still.policy.service_hung_s
    return still.is_blocked_early and (sleeps or still.diagnosis.suspect_wait in LOCAL_WAITS)


def _sleeps(still: Still) -> bool:
    """Return whether the suspect is in a wait that ends by itself in some time, as in a retry."""
    wait_s, policy = still.diagnosis.suspect_wait_s, still.policy
    is_known = wait_s is not None and policy.hung_floor_s <= wait_s <= policy.service_hung_s
    return still.is_blocked and is_known


TABLE: tuple[Row, ...] = (
    Row(
        "not diagnosed",
        lambda s: bool(s.diagnosis.why_not),
        lambda s: s.policy.moving_floor_s if s.context.all_still else s.policy.class_patience_s,
        lambda s: "nothing moves" if s.context.all_still else "no diagnosis, and a rank moves",
        is_learned=False,
    ),
    # What can never end. A launcher that ends the others needs some seconds: an incident about the
    # end of a job says more than one about a hang. A rank that never came is late, not dead, and
    # so is one that cannot meet the others.
    Row(
        "never seen, or never met",
        lambda s: s.diagnosis.cause in (Cause.NEVER_STARTED, Cause.MISCONFIGURED),
        lambda s: s.still_s,
        _says("the suspect cannot go on by itself"),
        is_learned=False,
    ),
    Row(
        "cannot go on",
        lambda s: cannot_go_on(s.diagnosis),
        lambda s: s.still_s,
        _says("the suspect cannot go on by itself"),
        lambda s: s.policy.early_check_s,
        is_learned=False,
    ),
    # A suspect that works may do so for long between two steps: it evaluates, saves, compiles.
    Row("works", lambda s: s.works, lambda s: s.work_s, _explain_work, is_work=True),
    # What the GPUs show. A host that goes from one wait to the next gives its GPU more work, and
    # counts as movement.
    Row(
        "odd GPU",
        lambda s: s.is_shown_by_gpus and s.diagnosis.suspects_rest,
        lambda s: s.gpu_s,
        _explain_gpus,
    ),
    # One rank is blocked and the others wait. Its wait may end by itself; else, where no step time
    # shows how long it may take, it depends on what it waits for.
    Row(
        "sleeps",
        _sleeps,
        lambda s: (s.diagnosis.suspect_wait_s or 0.0) + s.policy.hung_floor_s,
        lambda s: f"{_explain_still(s)}, but its wait ends in {s.diagnosis.suspect_wait_s:.0f} s",
        lambda s: s.policy.blocked_suspect_s if s.is_early else 0.0,
    ),
    Row(
        "wait in different calls",
        lambda s: (
            s.is_blocked_early and s.diagnosis.cause in SPLITS and s.diagnosis.confidence >= PROVEN
        ),
        lambda s: s.still_s,
        _says("ranks wait in different calls for each other"),
        lambda s: s.policy.blocked_suspect_s,
    ),
    Row(
        "blocked in set-up",
        lambda s: s.is_blocked_early and s.diagnosis.suspect_class == "init",
        lambda s: s.still_s,
        _explain_still,
    ),
    Row(
        "blocked by storage",
        lambda s: (
            s.is_blocked_early
            and (
                s.diagnosis.suspect_wait in STORAGE or s.diagnosis.cause is Cause.UNINTERRUPTIBLE_IO
            )
        ),
        lambda s: s.policy.storage_hung_s,
        lambda s: f"{_explain_still(s)}: storage may fail over",
        lambda s: s.policy.blocked_suspect_s,
    ),
    Row(
        "blocked on its node",
        _is_local,
        lambda s: s.policy.blocked_hung_s,
        _explain_still,
        lambda s: s.policy.blocked_suspect_s,
    ),
    Row(
        "waits for something outside",
        lambda s: s.is_blocked_early and bool(s.diagnosis.suspect_wait),
        lambda s: s.policy.service_hung_s,
        lambda s: f"{_explain_still(s)}: a service may be slow",
        lambda s: 2 * s.policy.blocked_suspect_s,
    ),
    # First steps. Movement of the suspect alone counts, because waiting ranks may use CPU, too. If
    # all ranks wait, none compiles or loads; but a first step on the devices may take minutes.
    Row(
        "blocked before the first steps",
        lambda s: s.context.starting and s.is_blocked,
        lambda s: s.still_s,
        _says("the suspect does not move and the others cannot start without it"),
    ),
    Row(
        "nothing moves before the first steps",
        lambda s: s.context.starting and s.context.all_still,
        lambda s: s.policy.moving_floor_s,
        _says("nothing moves"),
    ),
    Row(
        "all wait before the first steps",
        lambda s: (
            s.context.starting
            and bool(s.diagnosis.places)
            and WAITING_PLACES.issuperset(s.diagnosis.places)
        ),
        lambda s: s.policy.phase_patience_s,
        _says("all ranks wait, and no step is known"),
    ),
    Row(
        # A pace of three steps more would have made it suspect by now.
        "moves after a first step",
        lambda s: s.context.starting and s.context.has_stepped and s.diagnosis.peers_waiting,
        lambda s: s.policy.class_patience_s,
        _says("the suspect moves, and how long a step takes is not known"),
        lambda s: s.policy.blocked_suspect_s,
    ),
    Row(
        "moves before the first steps",
        lambda s: s.context.starting,
        lambda s: s.policy.startup_patience_s,
        _says("a rank works on the first steps"),
    ),
    # Jobs without heartbeats. Unless some ranks wait for others, one may be waiting for work.
    Row(
        "no heartbeats, no suspect",
        lambda s: (
            s.context.no_heartbeat and not (s.diagnosis.peers_waiting and s.diagnosis.suspects)
        ),
        lambda s: s.policy.phase_patience_s,
        lambda s: f"no step is known, and {_explain_no_wait(s)}",
    ),
    Row(
        "no heartbeats, still",
        lambda s: s.context.no_heartbeat and not s.diagnosis.suspects_moving,
        lambda s: s.still_s,
        _explain_still,
    ),
    Row(
        # It became suspect after samples that rarely agree. As many again leave little doubt.
        "no heartbeats, runs code",
        lambda s: s.context.no_heartbeat and s.context.rare_s < s.policy.class_patience_s,
        lambda s: max(s.policy.moving_floor_s, s.context.rare_s),
        _says("the suspect runs code, and samples of this job rarely agree for so long"),
    ),
    Row(
        "no heartbeats, moves",
        lambda s: s.context.no_heartbeat,
        lambda s: s.policy.class_patience_s,
        _says("the suspect moves, and no step is known"),
    ),
    # Marked phases of unknown length.
    Row(
        "moves in a phase",
        lambda s: bool(s.context.phase) and s.diagnosis.suspects_moving,
        lambda s: s.policy.phase_patience_s,
        _says("the suspect works in phase {phase}"),
    ),
    Row(
        "nothing moves in a phase",
        lambda s: bool(s.context.phase),
        lambda s: s.policy.phase_still_s,
        _says("nothing moves in phase {phase}"),
    ),
    # Steps of a known length.
    Row(
        "others wait for it",
        lambda s: s.diagnosis.peers_waiting and not s.diagnosis.suspects_moving,
        lambda s: s.still_s,
        _explain_still,
        lambda s: 0.0,
    ),
    Row(
        "nothing moves",
        lambda s: s.context.all_still,
        lambda s: s.moving_s,
        _says("nothing moves"),
    ),
    Row(
        "moves without a step",
        lambda s: s.diagnosis.peers_waiting,
        lambda s: s.moving_s,
        _says("the suspect moves but makes no step"),
        named_s=lambda s: s.moving_s / 2,
    ),
    Row(
        "no wait",
        lambda _: True,
        lambda s: s.policy.phase_patience_s,
        _explain_no_wait,
    ),
)


def patience_for(
    diagnosis: Diagnosis,
    context: StallContext,
    pauses: Pauses,
    policy: Policy,
    worked_s: float = 0.0,
) -> Patience:
    """Return how long a stall may last.

    `worked_s`: seconds from the suspicion until the suspect last worked, or left a marked phase. Up
    to `phase_patience_s`, they do not count.
    """
    still = Still(diagnosis, context, policy)
    row = next(row for row in TABLE if row.fits(still))
    patience = Patience(
        row=row.name,
        hung_s=row.hung_s(still),
        reason=row.reason(still),
        suspect_s=row.suspect_s(still),
        named_s=math.inf if row.is_work else row.named_s(still),
        is_work=row.is_work,
    )
    if row.is_learned:
        patience = _learn(patience, diagnosis, context, pauses, policy)
    if not worked_s or cannot_go_on(diagnosis):
        return patience
    longest_s = max(patience.hung_s, policy.phase_patience_s)
    return replace(patience, hung_s=min(worked_s + patience.hung_s, longest_s))


def _learn(
    patience: Patience, diagnosis: Diagnosis, context: StallContext, pauses: Pauses, policy: Policy
) -> Patience:
    """Lengthen a patience by what the job has shown, and by evidence that may still come."""
    seen = pauses.longest(context.phase, diagnosis.suspect_class)
    learned_s = min(policy.learned_factor * seen, policy.learned_max_s)
    if learned_s > patience.hung_s:
        reason = f"a pause of {seen:.0f} s was seen here before"
        patience = replace(patience, hung_s=learned_s, reason=reason)
    if diagnosis.lacks_logs:
        reason = f"{patience.reason}; collective logs of some ranks are missing"
        patience = replace(patience, hung_s=patience.hung_s + LOGS_WAIT_S, reason=reason)
    return patience
