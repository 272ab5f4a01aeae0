"""Sentences about a drill: what is about to happen, the verdict, how to go on. Pure.

Whatever comes from a watched process is made harmless first: one line, no control characters.
"""

from __future__ import annotations

from watchtower.drills.client import Json, json_list
from watchtower.drills.result import Result
from watchtower.drills.setup import DrillSetup
from watchtower.printable import fit_line

LONGEST = 400
"""Characters of one piece of text that are shown; the API has the rest."""
EVIDENCE_SHOWN = 4

STATUS_MEANS = {
    "healthy": "nothing is wrong",
    "suspect": "steps are overdue, evidence is being collected",
    "hung": "an incident is open, so alert rules fire",
    "slow": "steps still come, much later than usual",
    "recovered": "steps come again",
    "ended": "every process of the job is gone",
    "suspended": "every rank was stopped on purpose",
    "unseen": "the tower was not there",
    "monitoring_lost": "ranks are not reported, which says nothing about their state",
}

PROCESS_STATES = {"T": "stopped", "t": "traced", "D": "in the kernel", "Z": "gone", "X": "gone"}
"""States of a process that are worth a word; the others are ordinary."""


def clean(value: object) -> str:
    """Make untrusted text safe to print on a terminal."""
    return fit_line(str(value), LONGEST)


def opening(drill: DrillSetup, ranks: int, nodes: int, backend: str) -> list[str]:
    """Say what is about to happen."""
    kind = "PyTorch (gloo)" if backend == "torch" else "standard library"
    lines = [
        f"Drill {drill.name}: a real job of {ranks} ranks ({kind}) trains on this machine,"
        f" as {nodes} nodes. A tower watches it, with one agent per node.",
    ]
    if drill.is_fault:
        lines.append(f"Then {drill.shows}. Nobody tells the tower which rank; see if it finds out.")
    else:
        lines.append(
            f"Nothing is wrong with the job: {drill.shows}. The tower must raise no alarm."
        )
    return lines


def settings_line(changed: Json) -> str | None:
    """Say which settings are not the defaults."""
    if not changed:
        return None
    pairs = ", ".join(f"{name} = {clean(value)}" for name, value in changed.items())
    return f"Settings changed for this drill: {pairs}"


def accused(verdict: Json) -> list[str]:
    """One line for each suspect: who, and at which line of code."""
    lines = []
    for suspect in json_list(verdict.get("suspects")):
        pid = f"pid {suspect['pid']}" if suspect.get("pid") else ""
        place = ", ".join(filter(None, [clean(suspect.get("node") or ""), pid]))
        where = f" at {clean(suspect['where'])}" if suspect.get("where") else ""
        lines.append(
            f"rank {clean(suspect.get('rank'))}" + (f" ({place})" if place else "") + where
        )
    return lines


def verdict_lines(verdict: Json) -> list[str]:
    """The verdict as a person reads it."""
    who = "; ".join(accused(verdict)) or "no rank named"
    cause = clean(verdict.get("cause") or "no cause")
    sure = f"{100 * number(verdict.get('confidence')):.0f} % sure"
    lines = [f"{clean(verdict.get('status') or 'no verdict')}: {cause}, {who} ({sure})"]
    lines.append(clean(verdict.get("summary", "")))
    for one in json_list(verdict.get("evidence"))[:EVIDENCE_SHOWN]:
        lines.append(f"evidence ({clean(one.get('source'))}): {clean(one.get('text'))}")
    missing = verdict.get("missing_evidence")
    lines += [f"missing: {clean(one)}" for one in missing] if isinstance(missing, list) else []
    steps = verdict.get("next_steps")
    lines += [f"next: {clean(step)}" for step in steps] if isinstance(steps, list) else []
    return lines


def outcome_lines(result: Result) -> list[str]:
    """Right or wrong, how long it took and, where wrong, what would have been right."""
    lines = []
    observed, judgement = result.observed, result.judgement
    if observed.fault_to_verdict_s is not None:
        line = f"fault to verdict: {observed.fault_to_verdict_s:.1f} s"
        if observed.fault_to_hung_s is not None:
            line += f", to the incident: {observed.fault_to_hung_s:.1f} s"
        lines.append(line)
    if judgement.is_right:
        lines.append("RIGHT: " + _what_is_right(result))
    else:
        lines.append("WRONG: " + "; ".join(clean(reason) for reason in judgement.reasons))
    return lines


def closing(drill_count: int, program: str = "watchtower") -> list[str]:
    """How to go on after a drill; `program` is what to type for it."""
    return [
        f"More: `{program} drill --list` names all {drill_count} drills, healthy jobs among them.",
        "Your own jobs: one `beat(step)` in the training loop, `watchtower-agent run` on every"
        " node, `watchtower serve` on one. The README shows how.",
    ]


def status_line(status: str) -> str:
    """A status and what it means."""
    meaning = STATUS_MEANS.get(status)
    return f"{clean(status)}: {meaning}" if meaning else clean(status)


def rank_words(rank: Json) -> str:
    """What else there is to say about a rank: its phase, its state, how it ended."""
    words = [clean(rank.get("phase") or "")]
    ended = rank.get("ended")
    if isinstance(ended, dict):
        words.append(_how_it_ended(ended))
    else:
        words.append(PROCESS_STATES.get(str(rank.get("state")), ""))
    return " ".join(filter(None, words))


def number(value: object) -> float:
    """A number, 0 when it is none."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def _how_it_ended(ended: Json) -> str:
    if ended.get("exception_type"):
        return clean(ended["exception_type"])
    kind = {"exit": "exit code", "signal": "signal"}.get(str(ended.get("kind")))
    return f"{kind} {clean(ended.get('code'))}" if kind else "ended"


def _what_is_right(result: Result) -> str:
    if not result.drill.is_fault:
        return "no incident was opened."
    if not result.ranks:
        return f"no rank is to blame, cause {result.drill.expected.cause}."
    ranks = ", ".join(map(str, result.ranks))
    return f"the fault was in rank {ranks}, cause {result.drill.expected.cause}."
