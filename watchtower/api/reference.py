"""/docs: the API on one HTML page, without scripts or external resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 56em; margin: 2em auto; padding: 0 1em }
code { font: 14px ui-monospace, monospace; overflow-wrap: anywhere }
h2 { margin: 2em 0 .2em } h3 { font-size: 1em; margin: 1.6em 0 .2em } p, ul { margin: .2em 0 }
pre { font-size: 12px; overflow-x: auto } summary { cursor: pointer }
"""

Schemas = dict[str, Any]


def reference_routes(app: FastAPI) -> list[Route]:
    """The /docs route of an app."""

    async def get_reference(_: Request) -> Response:
        page = "".join(_write(app.openapi()))
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    return [Route("/docs", get_reference)]


def _write(document: dict[str, Any]) -> Iterator[str]:
    info, schemas = document["info"], document["components"]["schemas"]
    title = escape(f"{info['title']} {info['version']}")
    yield "<!doctype html><html lang=en><meta charset=utf-8>"
    yield "<meta name=viewport content='width=device-width, initial-scale=1'>"
    yield f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
    about, *points = info["description"].strip().split("\n* ")
    yield f"<p>{escape(about)}<ul>"
    yield from (f"<li>{_code(point)}" for point in points)
    yield "</ul><p>"
    tags = document["tags"]
    yield ", ".join(f"<a href='#{tag['name']}'>{tag['name']}</a>" for tag in tags)
    for tag in tags:
        yield f"<h2 id='{tag['name']}'>{tag['name']}</h2><p>{escape(tag['description'])}"
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    yield from _write_operation(f"{method.upper()} {path}", operation, schemas)


def _write_operation(call: str, operation: dict[str, Any], schemas: Schemas) -> Iterator[str]:
    summary, description = operation.get("summary", ""), operation.get("description", "")
    yield f"<section id='{escape(operation['operationId'])}'>"
    yield f"<h3><code>{escape(call)}</code> {escape(summary)}"
    yield f"</h3><p>{escape(description)}<ul>"
    for parameter in operation.get("parameters", ()):
        kind = _type_of(parameter.get("schema", {}), schemas)
        about = ", ".join((parameter["in"], kind, parameter.get("description", "")))
        yield f"<li><code>{escape(parameter['name'])}</code> ({escape(about)})"
    for content in operation.get("requestBody", {}).get("content", {}).values():
        body = _find(content["schema"], schemas)
        for name, field in body.get("properties", {}).items():
            needed = "needed" if name in body.get("required", ()) else "optional"
            about = ", ".join(
                ("body", needed, _type_of(field, schemas), field.get("description", ""))
            )
            yield f"<li><code>{escape(name)}</code> ({escape(about)})"
    yield "</ul>"
    yield from _write_answers(operation["responses"], schemas)
    yield "</section>"


def _write_answers(responses: dict[str, Any], schemas: Schemas) -> Iterator[str]:
    for kind, content in responses.get("200", {}).get("content", {}).items():
        example = content.get("example", "")
        shown = example if isinstance(example, str) else json.dumps(example, indent=1)
        yield f"<details><summary>200 {escape(kind)}</summary>"
        fields = _find(content.get("schema", {}), schemas).get("properties", {})
        if fields:
            yield "<ul>"
            for name, field in fields.items():
                about = field.get("description", "")
                yield f"<li><code>{escape(name)}</code>: {escape(_type_of(field, schemas))}"
                yield f". {escape(about)}" if about else ""
            yield "</ul>"
        yield f"<pre>{escape(shown)}</pre></details>"
    errors = ((status, each) for status, each in responses.items() if status != "200")
    yield "<details><summary>errors</summary><ul>"
    for status, each in errors:
        yield f"<li>{escape(status)}: {escape(each['description'])}"
    yield "</ul></details>"


def _find(schema: dict[str, Any], schemas: Schemas) -> dict[str, Any]:
    """Return a schema, or the one that it refers to."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return schemas.get(name, schema) if name else schema


def _type_of(schema: dict[str, Any], schemas: Schemas) -> str:
    """Return the type of a value in words: "string", "list of JobSummary", "one of hung, slow"."""
    if "anyOf" in schema:
        return " or ".join(_type_of(each, schemas) for each in schema["anyOf"])
    if "$ref" in schema:
        found = _find(schema, schemas)
        is_choice = "enum" in found
        return f"one of {', '.join(found['enum'])}" if is_choice else schema["$ref"].split("/")[-1]
    if schema.get("type") == "array":
        return f"list of {_type_of(schema.get('items', {}), schemas)}"
    return str(schema.get("type", "any value"))


def _code(text: str) -> str:
    """Return text as HTML, with its code spans."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(pieces))
