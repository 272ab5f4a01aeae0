"""Describes the fields of answers in /openapi.json.

The text is the docstring of the field in the code. A field without one means the same in all
answers, and its text is in `COMMON`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from fastapi.routing import APIRoute

COMMON = {
    "ack": "The acknowledgement: time, person and note. Null without one.",
    "age_s": "Seconds since the last heartbeat, or since the end of the process.",
    "agents": "Number of known agents.",
    "agents_silent": "Number of agents that stopped reporting.",
    "alternatives": "Other possible causes, the most likely first.",
    "at": "Time, RFC 3339 in UTC.",
    "by": "The person, as given in the request.",
    "cause": "The cause. The list of causes is closed; null without a diagnosis.",
    "closed_at": "Time at which the incident closed. Null while it is open.",
    "confidence": "0 to 1. Below 0.5 the cause is `unknown`.",
    "detail": "One sentence on the status.",
    "diagnosed_at": "Time of the diagnosis. Null without one.",
    "dumps": "Dumps of the current stall.",
    "ended": "How the process ended. Null while it runs.",
    "evidence": "Observations on which the verdict is based, the strongest first.",
    "frames": "Frames of the stack, innermost first.",
    "function": "Qualified name of the function.",
    "generation": "Number of the attempt, from 1.",
    "have": "Number of ranks that were dumped.",
    "id": "Unique identifier.",
    "incident": "Id of the incident. Null while the job is suspect or healthy.",
    "items": "The items of the list.",
    "job": "Name of the job.",
    "kind": "Kind of the ending.",
    "limits": "Limitations of the agent, as sentences.",
    "line": "Line number. 0 if it is not known.",
    "local_rank": "Rank on its node, as the launcher set it.",
    "missing_evidence": "Evidence that is missing, as sentences.",
    "next_steps": "Advice, as sentences.",
    "node": "Name of the node.",
    "nodes": "Nodes of the job.",
    "not_judged": "Why it is not known whether the job is healthy. Null unless the status is "
    "`healthy` by default.",
    "note": "Note of the person.",
    "opened_at": "Time at which the incident opened.",
    "owner": 'Owner of the job: "uid:1000", "namespace:team-a"; empty if not known.',
    "phase": "Phase that the job marked. Empty outside of all phases.",
    "pid": "Process id on its node.",
    "progress": "Whether the job makes steps. Null if that is not known.",
    "progress_text": "One sentence on the progress.",
    "rank": "Number of the rank.",
    "rank_states": "The ranks in their latest reports.",
    "ranks": 'Rank set, such as "0-6,8".',
    "ready": "Whether the tower can decide.",
    "reason": "Reason, as given in the request.",
    "right": "Whether the verdict was right.",
    "shared_cause": "A mount, node or address that may hold up other jobs, too. Null if not known.",
    "silent_for_s": "Seconds since the last report of the agent.",
    "since": "Time at which it began.",
    "stacks": "Distinct stacks of the main threads.",
    "stalled_for_s": "Seconds since the job stopped.",
    "state": "State of the process in the kernel: R, S, D, T, t, Z.",
    "status": "Status of the job.",
    "step": "Lowest step that every rank with heartbeats has made. Null before the first.",
    "summary": "One line, short enough for an alert.",
    "suspects": "The accused ranks. Empty if no rank is to blame.",
    "text": "One sentence.",
    "typical_step_s": "Seconds of a usual step. 0 if that is not known.",
    "until": "Time at which it ends.",
    "user": "Name of the user.",
    "verdict": "The verdict.",
    "want": "Number of ranks to dump.",
    "weight": "Probability that this alone shows the cause, 0 to 1.",
    "why": 'Completes the sentence "rank 37 ...".',
    "world_size": "Number of ranks that the job has.",
}
"""By the name of the field."""


def describe_fields(document: dict[str, Any], routes: Iterable[object]) -> None:
    """Describe each field of the answers of these routes in an OpenAPI document."""
    models = (route.response_model for route in routes if isinstance(route, APIRoute))
    schemas = document["components"]["schemas"]
    for kind in find_dataclasses(models):
        fields = schemas.get(kind.__name__, {}).get("properties", {})
        for name, text in read_field_texts(kind).items():
            if name in fields:
                fields[name].setdefault("description", text)
    for schema in schemas.values():
        for name, field in schema.get("properties", {}).items():
            if name in COMMON:
                field.setdefault("description", COMMON[name])


def find_dataclasses(models: Iterable[Any]) -> Iterator[type]:
    """Yield each dataclass in these types and in the types of its fields, once."""
    waiting, seen = list(models), set[type]()
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if isinstance(kind, type) and is_dataclass(kind) and kind not in seen:
            seen.add(kind)
            waiting += typing.get_type_hints(kind).values()
            yield kind


@cache
def read_field_texts(kind: type) -> dict[str, str]:
    """Return the docstring of each field, on one line; fields without one are left out."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                value = text.value if isinstance(text, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[field.target.id] = " ".join(value.value.split())
    return found
