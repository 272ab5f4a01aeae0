"""Sentences about a drill: the introduction, the verdict, and further steps. Pure.

Text from a watched process is cleaned first: one line, no control characters.
"""

from __future__ import annotations

from watchtower.drills.client import Json, json_list
from watchtower.drills.result import Result
from watchtower.drills.setup import DrillSetup
from watchtower.writing.printable import fit_line

LONGEST = 400
"""Characters shown of one text. The API has the rest."""
EVIDENCE_SHOWN = 4

KINDS = {
    "stdlib": "standard library",
    "torch": "PyTorch (gloo)",
    "queued": "PyTorch, collectives queued as on GPUs",
}
"""The description of a backend, in the introduction."""

STATUS_MEANS = {
    "healthy": "no problem detected",
    "suspect": "steps are overdue, collecting evidence",
    "hung": "an incident is open, so alert rules fire",
    "slow": "steps take much longer than usual",
    "recovered": "the job makes steps again",
    "ended": "every process of the job has ended",
    "suspended": "every rank was stopped with a signal",
    "unseen": "the tower was not running",
    "monitoring_lost": "agents do not report the ranks, so their state is unknown",
}

PROCESS_STATES = {"T": "stopped", "t": "traced", "D": "in the kernel", "Z": "exited", "X": "exited"}
"""Process states that are shown; the others are normal."""


def clean(value: object) -> str:
    """Return untrusted text in a form that is safe to print on a terminal."""
    return fit_line(str(value), LONGEST)


def opening(drill: DrillSetup, ranks: int, nodes: int, backend: str) -> list[str]:
    """Return what the drill will do."""
    kind = KINDS[backend]
    lines = [
        f"Drill {drill.name}: a real job of {ranks} ranks ({kind}) trains on this machine,"
        f" as {nodes} nodes. A tower watches it, with one agent per node.",
    ]
    if drill.is_fault:
        lines.append(f"Then {drill.shows}. The tower must find the rank and the cause.")
    else:
        lines.append(f"The job is healthy: {drill.shows}. The tower must not open an incident.")
    return lines


def settings_line(changed: Json) -> str | None:
    """Return which settings differ from the defaults; None if none do."""
    if not changed:
        return None
    pairs = ", ".join(f"{name} = {clean(value)}" for name, value in changed.items())
    return f"Settings changed for this drill: {pairs}"


def accused(verdict: Json) -> list[str]:
    """Return one line for each suspect: the rank and its line of code."""
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
    """Return the verdict for a person."""
    suspects = "; ".join(accused(verdict)) or "no suspect"
    cause = clean(verdict.get("cause") or "no cause")
    confidence = f"{100 * number(verdict.get('confidence')):.0f} % confidence"
    lines = [f"{clean(verdict.get('status') or 'no verdict')}: {cause}, {suspects} ({confidence})"]
    lines.append(clean(verdict.get("summary", "")))
    for one in json_list(verdict.get("evidence"))[:EVIDENCE_SHOWN]:
        lines.append(f"evidence ({clean(one.get('source'))}): {clean(one.get('text'))}")
    missing = verdict.get("missing_evidence")
    lines += [f"missing: {clean(one)}" for one in missing] if isinstance(missing, list) else []
    steps = verdict.get("next_steps")
    lines += [f"next: {clean(step)}" for step in steps] if isinstance(steps, list) else []
    return lines


def outcome_lines(result: Result) -> list[str]:
    """Return whether the verdict is right, its delay and, if it is wrong, the reasons."""
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
    """Return the next steps after a drill. `program` is the command to type."""
    return [
        f"More: `{program} drill --list` lists all {drill_count} drills, including healthy jobs.",
        "Your own jobs: one `beat(step)` in the training loop, `watchtower-agent run` on every"
        " node, `watchtower serve` on one. The README shows how.",
    ]


def describe_staying(url: str, job: str, incident: str, program: str) -> list[str]:
    """Return what a person can do while the hung job stays. `incident`: its id, or empty."""
    page = f"{url}/incidents/{incident}" if incident else f"{url}/jobs/{job}"
    return [
        "The job still hangs. Its page:",
        f"  {page}",
        "In another terminal:",
        f"  {program} why --tower {url}",
        "Ctrl-C ends the job, the agents and the tower.",
    ]


def state_of(status: str, verdict: Json | None) -> str:
    """Return the status as people read it: a job that is not judged yet is not called healthy."""
    not_judged = (verdict or {}).get("not_judged")
    return clean(not_judged.get("text") if isinstance(not_judged, dict) else status)


def status_line(status: str) -> str:
    """Return a status and its meaning."""
    meaning = STATUS_MEANS.get(status)
    return f"{clean(status)}: {meaning}" if meaning else clean(status)


def rank_words(rank: Json) -> str:
    """Return the phase of a rank and its state or how it ended."""
    words = [clean(rank.get("phase") or "")]
    ended = rank.get("ended")
    if isinstance(ended, dict):
        words.append(_how_it_ended(ended))
    else:
        words.append(PROCESS_STATES.get(str(rank.get("state")), ""))
    return " ".join(filter(None, words))


def number(value: object) -> float:
    """Return the number; 0 if the value is not a number."""
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
        return f"no rank caused it, cause {result.drill.expected.cause}."
    ranks = ", ".join(map(str, result.ranks))
    return f"the fault was in rank {ranks}, cause {result.drill.expected.cause}."
