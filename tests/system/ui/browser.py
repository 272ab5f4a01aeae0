"""A real Chromium: how it is started, what it may request, and what axe-core finds on a page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[3]
AXE = ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Root cannot use the sandbox. The others stop requests that no page asked for."""

PATIENCE_MS = 60_000
"""Milliseconds to wait for anything on a page, on a machine where other tests run."""

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}

SERIOUS = ("serious", "critical")


def find_chromium() -> str:
    """Return the path of Chromium; an empty text if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or ""


@contextlib.contextmanager
def running_chromium() -> Iterator[Any]:
    """Start Chromium. Skips the test where it or playwright is missing."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: `make browser`"
    )
    path = find_chromium()
    if not path:
        pytest.skip("Chromium is not installed: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page of the tower in a context of its own, and what went wrong on it."""

    page: Any
    url: str
    """Of the tower."""
    foreign: list[str] = field(default_factory=list)
    """Addresses outside of the tower that the page requested."""
    errors: list[str] = field(default_factory=list)
    """Errors of scripts, and what the content security policy refused."""
    requests: list[str] = field(default_factory=list)
    """Paths that were requested, in order."""

    def open(self, path: str) -> Visit:
        """Open a page of the tower."""
        self.page.goto(f"{self.url}{path}")
        return self

    def text(self) -> str:
        """Return what a person reads."""
        return str(self.page.inner_text("body"))

    def wait_for(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.page.get_by_text(text).first.wait_for()

    def fits(self) -> bool:
        """Whether a person need not scroll sideways."""
        return bool(
            self.page.evaluate("document.documentElement.scrollWidth <= document.body.clientWidth")
        )

    def find_problems(self) -> list[str]:
        """Return what axe-core finds serious or critical. Skips the test where it is missing."""
        if not AXE.exists():
            pytest.skip("axe-core is not installed: `make browser` (needs npm)")
        if not self.page.evaluate("typeof axe !== 'undefined'"):
            self.page.evaluate(AXE.read_text("utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']} at {node['target']}: {node.get('failureSummary', '')}"
            for each in found["violations"]
            if each["impact"] in SERIOUS
            for node in each["nodes"]
        ]

    def _note_request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if request.url.startswith(f"{self.url}/"):
            self.requests.append(parts.path)
        elif parts.scheme not in ("data", "blob", "about"):
            self.foreign.append(request.url)

    def _note_message(self, message: Any) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            self.errors.append(message.text)


@contextlib.contextmanager
def visiting(browser: Any, url: str, **options: Any) -> Iterator[Visit]:
    """Open a context with one page. `options` are those of playwright's new_context."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    visit = Visit(page=page, url=url)
    context.on("request", visit._note_request)
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on("console", visit._note_message)
    try:
        yield visit
    finally:
        context.close()
