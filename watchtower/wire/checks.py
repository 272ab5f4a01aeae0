"""What a check of a node found: a line of `watchtower-agent doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from watchtower.wire.bounds import NAME, TEXT, bounded

MAX_CHECKS = 64
"""Results of one node: some 20 checks, of which a few have several results."""


class CheckState(Enum):
    """How bad a result is."""

    OK = "ok"
    WARN = "warn"
    """A job can run, but slower, or with less evidence when it hangs."""
    FAIL = "fail"
    """A job that uses this cannot run, or a device needs to be reset or exchanged."""


WORST_FIRST = (CheckState.FAIL, CheckState.WARN, CheckState.OK)
"""The order in which results are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(check=NAME, text=TEXT, fix=TEXT)
class CheckResult:
    """One result of one check. Equal values mean that nothing has changed."""

    check: str
    """Name of the check: "fabric manager"."""
    state: CheckState
    text: str
    """What was found, without a full stop."""
    fix: str = ""
    """What to do; empty if nothing is to be done."""


def find_worst(results: Iterable[CheckResult]) -> CheckState:
    """Return the worst state; `OK` without results."""
    states = {each.state for each in results}
    return next((state for state in WORST_FIRST if state in states), CheckState.OK)


def sort_results(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Return the results, the worst ones first, else in the given order."""
    return sorted(results, key=lambda each: WORST_FIRST.index(each.state))
