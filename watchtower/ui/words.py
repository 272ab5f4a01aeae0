"""Words and numbers of several pages, and how pages show suspects, evidence and ranks. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone

from watchtower.evidence.frames import last_component, name_line
from watchtower.views.case_summary import RankSet
from watchtower.views.fleet import FleetJob
from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import Evidence, Status, Suspect, Verdict
from watchtower.writing.text import clean, count_ranks

_TONES = {
    Status.HUNG: "bad",
    Status.SUSPECT: "warn",
    Status.SLOW: "warn",
    Status.MONITORING_LOST: "warn",
    Status.RECOVERED: "good",
    Status.HEALTHY: "good",
}

NO_TONE = "over"
"""The class of the colour of what is neither good nor bad."""


def find_tone(status: Status) -> str:
    """Return the class of the colour of a status: "bad", "warn", "good" or "over"."""
    return _TONES.get(status, NO_TONE)


def stamp(wall: float | None) -> str | None:
    """Return UNIX seconds as RFC 3339 in whole seconds, as pages and verdicts show them."""
    if wall is None:
        return None
    return f"{datetime.fromtimestamp(math.floor(wall), timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def format_step_time(seconds: float) -> str:
    """Return "1.2 s a step"; empty if it is not known."""
    if seconds <= 0:
        return ""
    return f"{seconds:.2g} s a step" if seconds < 100 else f"{seconds:.0f} s a step"


def format_name(name: str) -> str:
    """Return the name of a status as words: "monitoring lost"."""
    return clean(name, 64).replace("_", " ")


def name_state(job: FleetJob) -> str:
    """Return the status of a job as people read it: "hung", "starting, not judged yet"."""
    return job.status.value if job.not_judged is None else job.not_judged.text


def find_job_tone(job: FleetJob) -> str:
    """Return the class of the colour of a job."""
    if job.not_judged is not None:
        return NO_TONE
    return find_tone(job.status) if job.acked_by is None else "warn"


def describe_job(job: FleetJob) -> list[str]:
    """Return the labels of a job, "512 ranks", "attempt 2"."""
    about = [*list_labels(job.labels), count_ranks(job.world_size)]
    return [*about, f"attempt {job.attempt}"] if job.attempt > 1 else about


def write_pace(job: FleetJob) -> str:
    """Return "1.2 s a step"; empty if it is not known."""
    return format_step_time(job.typical_step_s) if job.has_steps else ""


def list_labels(labels: Mapping[str, str]) -> list[str]:
    """Return the labels of a job in short: "slurm 48213", "alice", "train"."""
    ident = labels.get("scheduler_id", "")
    scheduled = f"{labels.get('scheduler', '')} {ident}".strip() if ident else ""
    rest = (labels.get(name, "") for name in ("name", "user", "partition", "namespace"))
    return list(dict.fromkeys(filter(None, (scheduled, *rest))))


MAX_SUSPECTS = 8
"""Suspects that are shown one by one. The others are in their rank set."""

MAX_EVIDENCE = 24
"""Lines of evidence, strongest first: more than any verdict has today."""


def list_suspects(verdict: Verdict) -> list[Suspect]:
    """Return the accused ranks that are shown one by one."""
    return list(verdict.suspects[:MAX_SUSPECTS])


def describe_process(suspect: Suspect) -> str:
    """Return "GPU 5, pid 4711"; empty if neither is known."""
    about = [
        "" if suspect.gpu is None else f"GPU {suspect.gpu}",
        "" if suspect.pid is None else f"pid {suspect.pid}",
    ]
    return ", ".join(filter(None, about))


def list_evidence(verdict: Verdict) -> list[Evidence]:
    """Return the evidence that has a text, the strongest first."""
    known = sorted((each for each in verdict.evidence if each.text), key=lambda each: -each.weight)
    return known[:MAX_EVIDENCE]


def find_weight(evidence: Evidence) -> int:
    """Return the weight of an observation, 0 to 100, for a bar; 0 without a weight."""
    return round(min(max(evidence.weight, 0.0), 1.0) * 100)


SHOWN_SET = 60
"""Characters of a rank set in a line."""


def cut_set(ranks: RankSet, limit: int = SHOWN_SET) -> str:
    """Return a rank set of at most about `limit` characters, cut between two ranks."""
    if ranks.is_whole and len(ranks.text) <= limit:
        return ranks.text
    return f"{ranks.text[:limit].rpartition(',')[0] or ranks.text},…"


def name_frame(frame: Frame) -> str:
    """Return "train train.py:52"."""
    return f"{last_component(frame.function)} {name_line(frame)}"
