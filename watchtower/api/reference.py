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
body { font: 15px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em }
code { font: 14px ui-monospace, monospace } h2 { font-size: 1em; margin: 1.6em 0 .2em }
p, ul { margin: .2em 0 } pre { font-size: 12px; overflow-x: auto }
"""

_OUTSIDE = {
    "/metrics": "Prometheus metrics.",
    "/openapi.json": "This page for programs: OpenAPI 3.1, with the shape of every answer.",
}


def reference_routes(app: FastAPI) -> list[Route]:
    """The /docs route of an app."""

    async def get_reference(_: Request) -> Response:
        page = "".join(_write(app.openapi()))
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    return [Route("/docs", get_reference)]


def _write(document: dict[str, Any]) -> Iterator[str]:
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
    yield f"<style>{_STYLE}</style><h1>{title}</h1>"
    yield "<p>A tower with tokens needs one: <code>Authorization: Bearer TOKEN</code>. An error is"
    yield " a problem document (RFC 9457): title, status, detail."
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            call = f"{method.upper()} {path}"
            yield from _write_operation(call, operation, document["components"]["schemas"])
    for path, text in _OUTSIDE.items():
        yield f"<h2><code>GET {path}</code></h2><p>{text}"


def _write_operation(
    call: str, operation: dict[str, Any], schemas: dict[str, Any]
) -> Iterator[str]:
    summary, description = operation.get("summary", ""), operation.get("description", "")
    yield f"<h2><code>{escape(call)}</code> {escape(summary)}</h2><p>{escape(description)}<ul>"
    for parameter in operation.get("parameters", ()):
        about = [parameter["in"], parameter.get("description", "")]
        text = ", ".join(filter(None, about))
        yield f"<li><code>{escape(parameter['name'])}</code> ({escape(text)})"
    for content in operation.get("requestBody", {}).get("content", {}).values():
        body = schemas.get(content["schema"].get("$ref", "").rpartition("/")[2], {})
        for name, field in body.get("properties", {}).items():
            text = f"body, {field.get('description', '')}"
            yield f"<li><code>{escape(name)}</code> ({escape(text)})"
    yield "</ul>"
    for kind, content in operation["responses"].get("200", {}).get("content", {}).items():
        if "example" in content:
            example = json.dumps(content["example"], indent=1)
            yield f"<details><summary>{escape(kind)}</summary>"
            yield f"<pre>{escape(example)}</pre></details>"
