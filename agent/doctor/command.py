"""`watchtower-agent doctor`: prints what the checks found; its exit code is their worst result."""

from __future__ import annotations

import sys
from enum import Enum

import msgspec

from agent import config
from agent.doctor.check import About
from agent.doctor.examining import Examined, examine
from agent.doctor.table import CHECKS
from watchtower.wire.checks import CheckResult, CheckState, find_worst, sort_results

HEALTHY, TROUBLE, UNKNOWN = 0, 1, 2
"""Exit codes, also those of a plugin of node-problem-detector. Wrong usage is 2, too."""


class Output(Enum):
    """Forms of the output."""

    TEXT = "text"
    JSON = "json"
    LINE = "line"
    """The worst result on one line, for plugins and reasons of other systems."""


def doctor(settings: config.DoctorSettings) -> int:
    """Examine the node, print the results, and return the exit code."""
    about = About(settings.about) if settings.about else None
    names = {each.lower() for each in settings.checks}
    wanted = [
        each
        for each in CHECKS
        if about in (None, each.about) and (not names or each.name.lower() in names)
    ]
    if unknown := names - {each.name.lower() for each in CHECKS}:
        known = ", ".join(each.name for each in CHECKS)
        print(f"watchtower-agent: no check is called {min(unknown)!r}: {known}", file=sys.stderr)
        return UNKNOWN
    found = examine(settings, wanted)
    sys.stdout.write(WRITERS[Output(settings.output)](settings, found))
    worst = find_worst(found.results)
    is_trouble = worst is CheckState.FAIL or (settings.strict and worst is CheckState.WARN)
    return TROUBLE if is_trouble else HEALTHY


def write_text(settings: config.DoctorSettings, found: Examined) -> str:
    """Return all results, the worst ones first, and the tests to run."""
    lines = []
    if settings.settings_file:
        lines.append(f"settings of the service, from {settings.settings_file}")
    for each in sort_results(found.results):
        lines.append(f"{each.state.name:<5} {each.check}: {each.text}")
        if each.fix:
            lines.append(f"      fix: {each.fix}")
    if found.tests:
        lines.append("\nNothing here loads the hardware. While no job runs, these tests do:")
    for test in found.tests:
        lines += [f"  {test.command}", f"      expect: {test.expect}"]
    return "\n".join(lines) + "\n"


def write_json(settings: config.DoctorSettings, found: Examined) -> str:
    """Return everything as one line of JSON."""
    answer = {
        "node": settings.node,
        "state": find_worst(found.results).value,
        "results": found.results,
        "tests": [each._asdict() for each in found.tests],
    }
    return msgspec.json.encode(answer).decode() + "\n"


def write_line(settings: config.DoctorSettings, found: Examined) -> str:
    """Return the worst result on one line, and how many more there are."""
    return summarize(found.results) + "\n"


def summarize(results: tuple[CheckResult, ...]) -> str:
    """Return "FAIL GPUs: the driver shows 7 of 8 GPUs; 2 more", or "OK nothing is wrong"."""
    bad = [each for each in sort_results(results) if each.state is not CheckState.OK]
    if not bad:
        return "OK nothing is wrong"
    more = f"; {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"{bad[0].state.name} {bad[0].check}: {bad[0].text}{more}"


WRITERS = {Output.TEXT: write_text, Output.JSON: write_json, Output.LINE: write_line}
