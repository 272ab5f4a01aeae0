"""/docs: the API on one plain page. No script, nothing loaded from elsewhere. / leads there."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em }
code { font: 14px ui-monospace, monospace } h2 { font-size: 1em; margin: 1.6em 0 .2em }
p, ul { margin: .2em 0 }
"""

_OUTSIDE = {
    "/metrics": "Prometheus metrics.",
    "/openapi.json": "This page for programs: OpenAPI 3.1, with the shape of every answer.",
}


def reference_routes(app: FastAPI) -> list[Route]:
    """The /docs route of an app, and the one for who types no more than its address."""

    async def get_reference(_: Request) -> Response:
        page = "".join(_write(app.openapi()))
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    async def go_to_reference(_: Request) -> Response:
        return RedirectResponse("docs")

    return [Route("/docs", get_reference), Route("/", go_to_reference)]


def _write(document: dict[str, Any]) -> Iterator[str]:
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
    yield f"<style>{_STYLE}</style><h1>{title}</h1>"
    yield "<p>Where the tower has tokens, send one: <code>Authorization: Bearer TOKEN</code>."
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _write_operation(f"{method.upper()} {path}", operation)
    for path, text in _OUTSIDE.items():
        yield f"<h2><code>GET {path}</code></h2><p>{text}"


def _write_operation(call: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{escape(call)}</code></h2><p>{escape(operation.get('description', ''))}<ul>"
    for parameter in operation.get("parameters", ()):
        about = [parameter["in"], parameter.get("description", "")]
        text = ", ".join(filter(None, about))
        yield f"<li><code>{escape(parameter['name'])}</code> ({escape(text)})"
    yield "</ul>"
