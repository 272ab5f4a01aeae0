"""The description of the API: /openapi.json, complete with errors, media types and examples.

FastAPI describes what it knows: parameters, bodies and the answers of the routes. This module adds
what comes from elsewhere: errors of the guard and of the handlers, and routes of Starlette. The
text of a field is its docstring in the code. A field without one means the same in all answers,
and its text is in `COMMON`.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import typing
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
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


JSON, PROBLEM = "application/json", "application/problem+json"

EXAMPLES: dict[str, Any] = json.loads(
    files(__package__).joinpath("examples.json").read_text("utf-8")
)
"""Examples of answers by their type, without fields that have their default. Answers without a type
of their own have one by the name of their route."""

JOBS, INCIDENTS, NODES, SILENCES, TOWER = "Jobs", "Incidents", "Nodes", "Silences", "Tower"

_TAGS = {
    JOBS: "Live jobs: their verdicts, ranks and stacks.",
    INCIDENTS: "Hangs and ends of jobs, open and past, and what people say about them.",
    NODES: "Nodes, and the agents on them.",
    SILENCES: "Jobs, nodes and users whose alerts do not fire for a while.",
    TOWER: "The state of the tower itself, and this description.",
}

_ABOUT = """\
The tower of watchtower: which rank hung a distributed training job, where and why.

* A tower with tokens needs one: `Authorization: Bearer TOKEN`. GET needs a token for readers or
  operators, everything else one for operators. /healthz and /readyz need none.
* Every error is a problem document (RFC 9457): title, status and detail. The detail says what to
  do.
* Answers to GET have an `ETag`. Send it as `If-None-Match` and get 304 while nothing changed.
* Times are RFC 3339 in UTC. Numbers have their unit in their name: `_s` is seconds.
* New fields may be added to every answer. Ignore those that you do not know.
"""

_PROBLEM_SCHEMA = {
    "title": "Problem",
    "type": "object",
    "required": ["title", "status", "detail"],
    "description": "An error (RFC 9457).",
    "properties": {
        "type": {"type": "string", "description": "Always about:blank."},
        "title": {"type": "string", "description": "The kind of error."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What happened, and what to do."},
        "candidates": {
            "type": "array",
            "items": {"type": "string"},
            "description": "With status 409: incidents whose id begins with the given text.",
        },
    },
}

_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token for readers or operators. A tower without tokens asks for none.",
    }
}

_ERRORS: dict[int, tuple[str, str, str]] = {
    400: ("Bad request", "The body is not text in UTF-8.", "There was an error parsing the body"),
    401: (
        "Token needed",
        "There is no token, or the tower does not know it.",
        "this call needs a token: send a valid one as `Authorization: Bearer TOKEN`",
    ),
    403: (
        "Forbidden",
        "The token has other rights, or a page of another site sent the request.",
        "this call needs a token for operator, but the token is for reader",
    ),
    404: (
        "Not found",
        "There is no such job, incident or silence.",
        "there is no job 'llama': no agent reports it, and it has no incident",
    ),
    409: (
        "Ambiguous id",
        "Several incidents begin with the given text.",
        "several incidents begin with '01': 01KAPY3V7QH8M2T4W6Z9B1C5D7 (job llama-70b) and more",
    ),
    413: (
        "Body too large",
        "The body is larger than any valid one.",
        "the body is larger than 65536 bytes, the limit of this address",
    ),
    415: (
        "Not JSON",
        "The body is not JSON by its header.",
        "the body must be JSON: send it with `Content-Type: application/json`",
    ),
    421: (
        "Unknown name of the tower",
        "A tower without tokens does not know the name in the header `Host`.",
        "'tower.example' is not a known name of this tower: add it to `allowed_hosts` in [tower]",
    ),
    422: (
        "Invalid parameter",
        "A parameter or a field of the body is not valid.",
        "`limit` must be 1000 or less",
    ),
    500: (
        "Internal error",
        "The tower failed. Its log has the reason.",
        "the tower failed (KeyError): see the traceback in its log",
    ),
    503: (
        "Not available",
        "The store cannot be read or written now, the tower is stopping, or the job cannot be "
        "examined now.",
        "the store could not be read: no answer within 10 s",
    ),
}
"""By status: title, description and the detail of an example."""

_OPEN = ("/healthz", "/readyz")

_TEXT = {"type": "string"}

FORMAT = "#/components/schemas/VerdictFormat"

_SLACK_MESSAGE = {
    "title": "SlackMessage",
    "type": "object",
    "description": "With `format=slack-blocks`: a message as Slack accepts it.",
    "required": ["text", "blocks"],
    "properties": {
        "text": {"type": "string", "description": "The message without its layout."},
        "blocks": {
            "type": "array",
            "items": {"type": "object"},
            "description": "The layout, in Slack's Block Kit.",
        },
    },
}


def describe_api(app: FastAPI, *, needs_token: bool) -> None:
    """Let `app` describe its API completely. `needs_token`: whether the tower has tokens."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            for route in app.routes:
                if isinstance(route, APIRoute):
                    route.operation_id = route.name
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=_ABOUT,
                routes=app.routes,
                tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
            )
            for route in app.routes:
                if isinstance(route, APIRoute):
                    _describe_answer(document["paths"], route)
            _complete(document, needs_token=needs_token)
            describe_fields(document, app.routes)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(schema: dict[str, Any], *, needs_token: bool) -> None:
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM_SCHEMA
    schema["components"]["securitySchemes"] = _SCHEMES
    schema["security"] = [{"bearer": []}] if needs_token else []
    schema["paths"] |= _OTHERS
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if path in _OPEN:
                operation["security"] = []
            responses = operation["responses"]
            if any(FORMAT in json.dumps(each) for each in operation.get("parameters", ())):
                _add_formats(responses["200"]["content"])
            responses.pop("422", None)
            for status in sorted(_find_errors(path, method, operation)):
                responses.setdefault(str(status), _describe_error(status))


def _describe_answer(paths: dict[str, Any], route: APIRoute) -> None:
    """Describe the successful answer of a route by its type, and add an example.

    An answer that has no type of its own has the description and an example of its route.
    """
    (operation,) = (paths[route.path_format][each.lower()] for each in route.methods or ())
    answer = operation["responses"]["200"]
    kind = route.response_model
    is_own = isinstance(kind, type) and is_dataclass(kind)
    answer["description"] = _first_paragraph(kind if is_own else route.endpoint)
    example = EXAMPLES[kind.__name__ if is_own else route.name]
    if is_own:  # with the defaults of its fields
        try:
            example = msgspec.to_builtins(msgspec.convert(example, kind))
        except msgspec.ValidationError as error:
            name = kind.__name__
            raise ValueError(f"{name} in api/examples.json is not an answer: {error}") from None
    for media_type, content in answer["content"].items():
        content["example"] = example if media_type == JSON else example[media_type]


def _first_paragraph(described: object) -> str:
    return " ".join((inspect.getdoc(described) or "").partition("\n\n")[0].split())


def _add_formats(content: dict[str, Any]) -> None:
    """Describe the other formats of a verdict.

    `format=slack-blocks` answers with a message in place of the usual JSON.
    """
    for media_type, text in EXAMPLES["verdict_texts"].items():
        content[media_type] = {"schema": _TEXT, "example": text}
    content[JSON]["schema"] = {"anyOf": [content[JSON]["schema"], _SLACK_MESSAGE]}


def _find_errors(path: str, method: str, operation: dict[str, Any]) -> set[int]:
    """Return the statuses of the errors that an operation may answer."""
    if path in _OPEN:
        return {500}
    errors = {401, 403, 421, 500, 503}
    if operation.get("parameters"):
        errors.add(422)
    if "{" in path:
        errors.add(404)
    if "{incident}" in path:
        errors.add(409)
    if method == "post":
        errors |= {413, 415}
    if "requestBody" in operation:
        errors |= {400, 422}
    return errors


def _describe_error(status: int) -> dict[str, Any]:
    title, description, detail = _ERRORS[status]
    example: dict[str, Any] = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
    }
    if status == 409:
        example["candidates"] = ["01KAPY3V7QH8M2T4W6Z9B1C5D7"]
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        "description": description,
        "content": {PROBLEM: {"schema": schema, "example": example}},
    }


def _page(
    name: str, summary: str, description: str, media_type: str, example: object
) -> dict[str, Any]:
    """Return the description of a route of Starlette: GET without parameters."""
    kind = {"type": "object"} if media_type == "application/json" else _TEXT
    content = {media_type: {"schema": kind, "example": example}}
    return {
        "get": {
            "tags": [TOWER],
            "operationId": name,
            "summary": summary,
            "description": description,
            "responses": {"200": {"description": summary, "content": content}},
        }
    }


_OTHERS = {
    "/metrics": _page(
        "get_metrics",
        "Get Metrics",
        "Return the metrics of the tower and of its jobs, as Prometheus reads them.",
        "text/plain",
        'watchtower_job_status{status="hung",training_job="llama-70b"} 1.0\n',
    ),
    "/docs": _page(
        "get_reference",
        "Get Reference",
        "Return this description as one page, without scripts and without other sites.",
        "text/html",
        "<!doctype html><html lang=en><title>watchtower</title>",
    ),
    "/openapi.json": _page(
        "get_openapi",
        "Get Openapi",
        "Return this description for programs, as OpenAPI 3.1.",
        "application/json",
        {"openapi": "3.1.0", "info": {"title": "watchtower", "version": "0.1.0"}, "paths": {}},
    ),
}
