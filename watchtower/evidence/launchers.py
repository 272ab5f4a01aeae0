"""Reads what the launchers of a job without ranks show: which nodes have met, and which not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from watchtower.evidence.case import LauncherEvidence
from watchtower.wire.report import FOR_HEAD, FOR_RANKS
from watchtower.writing.text import clean, format_duration, name_nodes

MAX_NAMES = 4096
"""Nodes of one list of a scheduler that are named. Untrusted text may name far more."""

MAX_DIGITS = 9
"""Digits of a number in a list of nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What all launchers of a job show together."""

    is_judged: bool
    """Whether it is late after a while. A launcher that starts its ranks elsewhere may run a
    program that has none, or ranks that no agent sees."""
    launcher: str
    joined: tuple[str, ...]
    """Nodes whose launcher waits."""
    expected: int
    missing: tuple[str, ...]
    """Nodes of the scheduler's list whose launcher was not seen; empty if they are not known."""
    waits_s: float
    """Seconds since the first launcher was started."""
    since_last_s: float
    """Seconds since the last one was."""
    endpoints: dict[str, tuple[str, ...]]
    """The nodes by the address at which their launchers meet, most nodes first."""

    ended: dict[str, str]
    """Why a launcher has ended, by node."""

    @property
    def lacking(self) -> int:
        """How many nodes are missing."""
        return max(0, self.expected - len(self.joined))

    def describe(self) -> str:
        """Return "1 of 2 nodes joined, waiting for 1 (n2); since 40 s"."""
        if not self.joined and not self.ended:
            where = f" on {name_nodes(self.missing)}" if self.missing else ""
            return f"no rank was seen yet{where}; since {format_duration(self.waits_s)}"
        counted = f"{len(self.joined)} of {self.expected} nodes joined"
        names = f" ({name_nodes(self.missing)})" if self.missing else ""
        waits = f"waiting for {self.lacking}{names}" if self.lacking else "waiting for each other"
        return f"{counted}, {waits}; since {format_duration(self.waits_s)}"


def read_meeting(launchers: Sequence[LauncherEvidence]) -> Meeting:
    """Return what these launchers show together, at least one."""
    # What srun waits for starts with the launchers that it has started on the nodes.
    on_nodes = [each for each in launchers if each.launcher.waits_for != FOR_RANKS]
    launchers = on_nodes or launchers
    first = min(launchers, key=lambda each: -each.launcher.waits_s).launcher
    joined = tuple(sorted({each.node for each in on_nodes if not each.launcher.ended}))
    expected = max(each.launcher.nodes for each in launchers)
    if first.waits_for == FOR_HEAD:
        missing, expected = tuple([first.endpoint]), len(joined) + 1
    elif on_nodes:
        missing = _find_missing(first.node_list, joined, expected)
    else:
        missing = tuple(expand_nodes(first.node_list))
        expected = max(expected, len(missing))
    return Meeting(
        is_judged=bool(on_nodes),
        ended={each.node: each.launcher.ended for each in on_nodes if each.launcher.ended},
        launcher=clean(first.launcher, 32),
        joined=joined,
        expected=expected,
        missing=missing,
        waits_s=first.waits_s,
        since_last_s=min(each.launcher.waits_s for each in launchers),
        endpoints=_group_endpoints(launchers),
    )


def _group_endpoints(launchers: Sequence[LauncherEvidence]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for each in launchers:
        if each.launcher.endpoint:
            run_id = f" ({each.launcher.run_id})" if each.launcher.run_id else ""
            found.setdefault(f"{each.launcher.endpoint}{run_id}", []).append(each.node)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))
    return {endpoint: tuple(nodes) for endpoint, nodes in ordered}


def _find_missing(node_list: str, joined: Sequence[str], expected: int) -> tuple[str, ...]:
    """Return the nodes of a list that have not joined; none if it is not about these nodes."""
    names = list(expand_nodes(node_list))
    short = set(map(short_name, joined))
    missing = tuple(name for name in names if short_name(name) not in short)
    is_whole = len(names) == expected and len(missing) == expected - len(joined)
    return missing if is_whole else ()


def short_name(node: str) -> str:
    """Return the name of a node up to its first dot, or its address. Some names have no domain."""
    first = node.partition(".")[0]
    return node if first.isdigit() else first


def expand_nodes(text: str) -> Iterator[str]:
    """Yield the names in a list of Slurm, `MAX_NAMES` at most: "n[1-2,07]" is n1, n2, n07."""
    return islice(_expand(text), MAX_NAMES)


def _expand(text: str) -> Iterator[str]:
    for at, part in enumerate(text.split("]")):
        names, bracket, numbers = part.partition("[")
        # Behind a bracket comes a comma. What is before the next bracket belongs to its numbers.
        plain = (names.removeprefix(",") if at else names).split(",")
        last = plain.pop()
        yield from filter(None, map(str.strip, plain))
        if bracket:
            yield from (f"{last.strip()}{number}" for number in _expand_numbers(numbers))
        elif last.strip():
            yield last.strip()


def _expand_numbers(text: str) -> Iterator[str]:
    if not text:
        yield ""
        return
    for part in text.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not (first.isdigit() and last.isdigit() and max(len(first), len(last)) <= MAX_DIGITS):
            continue
        for number in range(int(first), min(int(last), int(first) + MAX_NAMES) + 1):
            yield str(number).zfill(len(first))
