"""The traces of a failed test of the system tier: the logs, and the answers of each tower.

A test that fails once in a hundred runs must be understood from that one run.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

FILES = 12
LINES = 25
JOBS = 4
TOO_LONG = 20_000
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add a section to the report of a failure, while the processes of the test still run."""
    report = (yield).get_result()
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and call.when == "call" and folder is not None:
        report.sections.append(("what the processes left", _describe(folder)[:TOO_LONG]))


def _describe(folder: Path) -> str:
    logs = sorted(path for path in folder.rglob("*") if path.suffix in (".err", ".log"))
    parts = [f"--- {path.relative_to(folder)}\n{_read_tail(path)}" for path in logs[:FILES]]
    return "\n".join([*_ask_towers(folder), *parts])


def _read_tail(path: Path) -> str:
    try:
        return "\n".join(path.read_text("utf-8", "replace").splitlines()[-LINES:])
    except OSError as error:
        return str(error)


def _ask_towers(folder: Path) -> list[str]:
    """Return the job list, the verdicts and the incidents of every tower that answers."""
    found = {
        url for path in folder.rglob("tower*.out") for url in ADDRESS.findall(path.read_text())
    }
    answers = []
    for url in sorted(found):
        paths = ["jobs", "incidents", "alerts"]
        paths += [f"jobs/{name}/verdict" for name in _name_jobs(url)[:JOBS]]
        answers += [f"--- {url} {path}\n{_ask(url, path)}" for path in paths]
    return answers


def _name_jobs(url: str) -> list[str]:
    return re.findall(r'"job":\s*"([\w.-]+)"', _ask(url, "jobs"))


def _ask(url: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=5) as reply:
            return str(reply.read(4000), "utf-8", "replace")
    except (OSError, urllib.error.HTTPError) as error:
        return str(error)
