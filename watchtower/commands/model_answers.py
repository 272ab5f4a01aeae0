"""Answers of the tower as a language model reads them: JSON of bounded length.

A long answer costs the model its memory. So lists and texts are shortened until the answer fits,
and each shortened list says how many items it lacks.
"""

from __future__ import annotations

from typing import Any

from watchtower.commands.client import TowerClient
from watchtower.commands.printing import as_json
from watchtower.commands.texts import name_frame

MAX_ANSWER = 24_000
"""Characters of one answer: some 8,000 tokens."""

_ROUNDS = ((200, 2000), (50, 600), (20, 300), (8, 160), (3, 80))
"""Items of a list and characters of a text, from the first try to the last one."""

MAX_SIMILAR = 10
"""Earlier incidents in one answer: those with the most in common."""

SHOWN = ("id", "job", "status", "cause", "domain", "suspect_ranks", "summary", "opened_at")
"""Fields of an incident in a list."""

_JOB = (
    "job",
    "labels",
    "owner",
    "status",
    "not_judged",
    "detail",
    "world_size",
    "step",
    "incident",
)
_VERDICT = ("evidence", "missing_evidence", "doubts", "alternatives", "aftermath", "next_steps")


def write_answer(value: Any) -> str:
    """Return a value as JSON of at most `MAX_ANSWER` characters."""
    text = ""
    for items, characters in _ROUNDS:
        text = as_json(_shorten(value, items, characters))
        if len(text) <= MAX_ANSWER:
            return text
    return as_json({"left_out": "the answer is too long", "begins_with": text[:200]})


def _shorten(value: Any, items: int, characters: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[:characters]}…"
    if isinstance(value, dict):
        return {str(key): _shorten(each, items, characters) for key, each in value.items()}
    if isinstance(value, list):
        kept = [_shorten(each, items, characters) for each in value[:items]]
        return [*kept, {"left_out": len(value) - items}] if len(value) > items else kept
    return value


def answer_jobs(client: TowerClient) -> str:
    """Return the live jobs."""
    return write_answer({"items": [_pick(job, _JOB) for job in client.jobs()]})


def answer_verdict(client: TowerClient, job: str) -> str:
    """Return the verdict of a job, as text for people: it has the most important facts first."""
    return client.verdict_text(job, "markdown")[:MAX_ANSWER]


def answer_incidents(client: TowerClient, job: str, limit: int) -> str:
    """Return the newest incidents, of one job or of all jobs."""
    found = client.incidents(job or None, max(1, min(limit, 100)))
    return write_answer({"items": [_pick(each, SHOWN) for each in found]})


def answer_incident(client: TowerClient, incident: str) -> str:
    """Return one incident without its stacks and evidence, for which there are other answers."""
    found = client.incident(incident)
    verdict = {name: value for name, value in found["verdict"].items() if name not in _VERDICT[:-1]}
    rest = {name: value for name, value in found.items() if name != "stacks"}
    return write_answer(rest | {"verdict": verdict})


def answer_stacks(client: TowerClient, incident: str) -> str:
    """Return the stacks of an incident, merged over ranks, rarest first."""
    found = client.incident(incident)
    groups = [
        {"ranks": group["ranks"], "innermost_first": [name_frame(f) for f in group["frames"]]}
        for group in found["stacks"]
    ]
    return write_answer({"id": found["id"], "items": groups})


def answer_evidence(client: TowerClient, incident: str) -> str:
    """Return what a verdict is based on, what is not known, and what else is possible."""
    found = client.incident(incident)
    return write_answer({"id": found["id"]} | _pick(found["verdict"], _VERDICT))


def answer_similar(client: TowerClient, incident: str) -> str:
    """Return earlier incidents on the same node or line, or with the same cause."""
    return write_answer(client.similar(incident, MAX_SIMILAR))


def _pick(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value}
