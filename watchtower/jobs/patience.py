"""Decides how long a suspicion may last before it becomes an incident."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from watchtower.diagnosis.causes import entry_of
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.jobs.pace import Pauses
from watchtower.jobs.stall_context import StallContext
from watchtower.policy import Policy

PATIENT_CLASSES = frozenset({"compile", "checkpoint", "network", "child"})
"""Frame classes of work that usually takes long, as long as something moves."""

IMPATIENT_CLASSES = frozenset({"dataloader"})
"""Frame classes without extra patience even if they transfer data. A batch must arrive in time."""


def cannot_go_on(diagnosis: Diagnosis) -> bool:
    """Return whether a job cannot recover by itself.

    It can if only the load of a GPU shows that it has no work: a copy to its host does not count as
    load.
    """
    return entry_of(diagnosis.cause).cannot_go_on and not diagnosis.is_shown_by_gpus


WAITING_PLACES = frozenset({"device", "waiting"})
"""Names in `Diagnosis.places` of ranks that wait for a device or for other ranks."""

LOGS_WAIT_S = 10.0
"""Seconds of patience for collective logs that were not read, if the cause is unknown without them:
they are dumped again meanwhile. An alert should name the rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds from suspicion to incident, and the reason for them."""

    length_s: float
    reason: str


@dataclass(slots=True)
class PhaseTime:
    """The marked phases of the top suspect during a stall."""

    name: str = ""
    """Phase in which the top suspect was last; empty if it was in none."""
    until: float = -math.inf
    """When the top suspect last worked in a phase, or left one."""
    _is_inside: bool = False

    def take(self, phase: str, is_moving: bool, now: float) -> None:
        """Add the present phase of the top suspect, and whether the suspect moves.

        Other ranks do not count: any of them could delay an incident by its phases.
        """
        works, has_left = phase and is_moving, self._is_inside and not phase
        if works or has_left:
            self.until = now
        self.name, self._is_inside = phase or self.name, bool(phase)


def patience_for(
    diagnosis: Diagnosis,
    context: StallContext,
    pauses: Pauses,
    policy: Policy,
    in_phase_s: float = 0.0,
) -> Patience:
    """Return how long after suspicion a stall becomes an incident.

    `in_phase_s`: seconds from the suspicion until the suspect last worked in a marked phase, or
    left one. Up to `phase_patience_s`, they do not count.
    """
    patience = _patience_outside_phases(diagnosis, context, pauses, policy)
    if not in_phase_s or cannot_go_on(diagnosis):
        return patience
    longest_s = max(patience.length_s, policy.phase_patience_s)
    return replace(patience, length_s=min(in_phase_s + patience.length_s, longest_s))


def _patience_outside_phases(
    diagnosis: Diagnosis, context: StallContext, pauses: Pauses, policy: Policy
) -> Patience:
    if diagnosis.why_not:
        return _undiagnosed(context, policy)
    if cannot_go_on(diagnosis):
        return Patience(
            length_s=_still_s(context, policy), reason="the suspect cannot go on by itself"
        )
    patience = _by_gpus(diagnosis, context, policy) or (
        _without_heartbeats(diagnosis, context, policy)
        if context.no_heartbeat
        else _by_movement(diagnosis, context, policy)
    )
    seen = pauses.longest(context.phase, diagnosis.suspect_class)
    learned_s = min(policy.learned_factor * seen, policy.learned_max_s)
    if learned_s > patience.length_s:
        patience = Patience(
            length_s=learned_s,
            reason=f"a pause of {seen:.0f} s was seen here before",
        )
    if diagnosis.lacks_logs:
        reason = f"{patience.reason}; collective logs of some ranks are missing"
        return Patience(length_s=patience.length_s + LOGS_WAIT_S, reason=reason)
    return patience


def _undiagnosed(context: StallContext, policy: Policy) -> Patience:
    if context.all_still:
        return Patience(length_s=policy.moving_floor_s, reason="nothing moves")
    reason = "there is no diagnosis, and a rank moves"
    return Patience(length_s=policy.class_patience_s, reason=reason)


def _by_gpus(diagnosis: Diagnosis, context: StallContext, policy: Policy) -> Patience | None:
    """Return the patience where the GPUs show the hang; None where they do not.

    All hosts wait for their devices, and the GPUs of the others have waited for seconds. The host
    of the suspect rests, so it gives its GPU no more work. Movement of that GPU is not progress
    then: a kernel without an end moves for ever. The time of some steps is enough for a kernel that
    ends; where no step is known, the longest time without a change takes its place. First steps,
    marked phases, and code that usually takes long get their own patience.

    A host that goes from one wait to the next gives its GPU more work, and counts as movement.
    """
    is_usual = not (context.starting or context.phase)
    if not (diagnosis.is_shown_by_gpus and is_usual):
        return None
    if diagnosis.suspect_class in PATIENT_CLASSES:
        reason = f"{diagnosis.suspect_class} work takes long, also on a GPU"
        return Patience(length_s=policy.class_patience_s, reason=reason)
    if not diagnosis.suspects_rest:
        return None
    reason = "all hosts wait for their GPUs, and the GPU of the suspect differs from the others"
    if context.no_heartbeat or not context.typical_s:
        length_s = max(policy.moving_floor_s, context.longest_run_s)
        return Patience(length_s=length_s, reason=f"{reason}; no step is known")
    return Patience(length_s=_still_s(context, policy), reason=reason)


def _by_movement(diagnosis: Diagnosis, context: StallContext, policy: Policy) -> Patience:
    if context.starting:
        return _at_start(diagnosis, context, policy)
    if context.phase and diagnosis.suspects_moving:
        reason = f"the suspect works in phase {context.phase}"
        return Patience(length_s=policy.phase_patience_s, reason=reason)
    if context.phase:
        reason = f"nothing moves in phase {context.phase}"
        return Patience(length_s=policy.phase_still_s, reason=reason)
    if diagnosis.peers_waiting and not diagnosis.suspects_moving:
        return Patience(length_s=_still_s(context, policy), reason=_explain_still(diagnosis))
    if diagnosis.peers_waiting and diagnosis.suspect_class in PATIENT_CLASSES:
        reason = f"{diagnosis.suspect_class} work takes long"
        return Patience(length_s=policy.class_patience_s, reason=reason)
    if diagnosis.suspects_transfer and diagnosis.suspect_class not in IMPATIENT_CLASSES:
        reason = "the suspect transfers data through the network"
        return Patience(length_s=policy.class_patience_s, reason=reason)
    if diagnosis.peers_waiting or context.all_still:
        still = "nothing moves" if context.all_still else "the suspect moves but makes no step"
        length_s = max(policy.moving_floor_s, policy.moving_factor * context.typical_s)
        return Patience(length_s=length_s, reason=still)
    return Patience(length_s=policy.phase_patience_s, reason=_explain_no_wait(diagnosis))


def _at_start(diagnosis: Diagnosis, context: StallContext, policy: Policy) -> Patience:
    """Return the patience before the first steps.

    It depends on the suspect's movement only, because waiting ranks may use CPU, too. If all ranks
    wait, none compiles or loads; but a first step on the devices may still take minutes.
    """
    if diagnosis.suspects and not diagnosis.suspects_moving:
        reason = "the suspect does not move and the others cannot start without it"
        return Patience(length_s=_still_s(context, policy), reason=reason)
    if context.all_still:
        return Patience(length_s=policy.moving_floor_s, reason="nothing moves")
    if diagnosis.places and WAITING_PLACES.issuperset(diagnosis.places):
        reason = "all ranks wait, and no step is known"
        return Patience(length_s=policy.phase_patience_s, reason=reason)
    return Patience(length_s=policy.startup_patience_s, reason="a rank works on the first steps")


def _without_heartbeats(diagnosis: Diagnosis, context: StallContext, policy: Policy) -> Patience:
    """Return the patience with a job without heartbeats.

    Unless some ranks wait for others, such a job may be waiting for work.
    """
    if not diagnosis.peers_waiting:
        reason = f"no step is known, and {_explain_no_wait(diagnosis)}"
        return Patience(length_s=policy.phase_patience_s, reason=reason)
    if not diagnosis.suspects:
        reason = "no step is known, and no rank is known to hold up the others"
        return Patience(length_s=policy.phase_patience_s, reason=reason)
    if not diagnosis.suspects_moving:
        return Patience(length_s=_still_s(context, policy), reason=_explain_still(diagnosis))
    if context.rare_s < policy.class_patience_s and diagnosis.suspect_class not in PATIENT_CLASSES:
        # It became suspect after samples that rarely agree. As many again leave little doubt.
        length_s = max(policy.moving_floor_s, context.rare_s)
        reason = "the suspect runs code, and samples of this job rarely agree for so long"
        return Patience(length_s=length_s, reason=reason)
    reason = "the suspect moves, and no step is known"
    return Patience(length_s=policy.class_patience_s, reason=reason)


def _explain_still(diagnosis: Diagnosis) -> str:
    """Return the reason for the shortest patience, in the words of the summary."""
    waiting = diagnosis.waiting_text or "other ranks wait"
    if not diagnosis.suspects:
        return waiting
    whose = "suspect does" if len(diagnosis.suspects) == 1 else "suspects do"
    return f"the {whose} not move and {waiting}"


def _explain_no_wait(diagnosis: Diagnosis) -> str:
    """Return the reason for the longest patience, in agreement with the summary."""
    if not diagnosis.waiting_text:
        return "no rank is waiting for another"
    return f"{diagnosis.waiting_text}, but they may be working there"


def _still_s(context: StallContext, policy: Policy) -> float:
    return max(policy.hung_floor_s, policy.hung_factor * context.typical_s)
