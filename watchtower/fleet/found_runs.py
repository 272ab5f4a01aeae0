"""Files with several runs of a job: the last run counts, and the earlier ones are only counted.

A restarted job often writes on into the same files. A new run begins where a launcher writes that
it starts, where NCCL sets up the same rank in another process, or where the number of a call in
which a rank waited is smaller than before. All runs of a file but the last are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from watchtower.evidence.error_texts import OWN, read_error
from watchtower.readers.findings import (
    CallsFound,
    EndFound,
    ErrorFound,
    FileFound,
    Finding,
    Process,
    RunStarted,
    SetUpFound,
)
from watchtower.readers.watchdog import UNNAMED_GROUP

_ATTEMPT = re.compile(r"(.{0,4000})/attempt_(\d{1,6})/")
"""A folder of `torchrun --log-dir`: each restart has its own."""

_Numbers = dict[str, set[int]]
"""Numbers of calls in which ranks waited, by group."""


def keep_last_run(files: Sequence[FileFound]) -> list[FileFound]:
    """Return the files without what is of an earlier run."""
    files = _keep_last_attempts(files)
    parted = [_part(file.findings) for file in files]
    earlier, last = _numbers(p.before for p in parted), _numbers(p.kept for p in parted if p.runs)
    return [
        replace(file, findings=parts.kept, earlier_runs=file.earlier_runs + parts.runs)
        for file, own in zip(files, parted, strict=True)
        for parts in [
            _leave_out(own.kept) if not own.runs and _is_earlier(own.kept, earlier, last) else own
        ]
    ]


def _keep_last_attempts(files: Sequence[FileFound]) -> list[FileFound]:
    """Return the files, those of an earlier attempt without what was found in them."""
    attempts = [_ATTEMPT.match(file.name) for file in files]
    newest: dict[str, int] = {}
    for found in filter(None, attempts):
        newest[found[1]] = max(int(found[2]), newest.get(found[1], 0))
    return [
        FileFound(name=file.name, form=file.form, lines=file.lines, earlier_runs=1)
        if found and int(found[2]) < newest[found[1]]
        else file
        for file, found in zip(files, attempts, strict=True)
    ]


@dataclass(slots=True)
class _Parts:
    """The findings of one file."""

    kept: tuple[Finding, ...]
    """Those of the last run."""
    before: Sequence[Finding] = ()
    runs: int = 0
    """Runs before the last one."""


@dataclass(slots=True)
class _Run:
    """What is known of the run that is read."""

    waited_in: dict[tuple[int, str], int] = field(default_factory=dict)
    processes: dict[tuple[int, int], Process | None] = field(default_factory=dict)
    """By rank and size of a communicator."""
    calls_end: int = 0
    """How many findings there are up to the last call of a watchdog."""
    is_over: bool = False
    """A rank has waited too long, or has ended."""


def _part(findings: Sequence[Finding]) -> _Parts:
    """Return the findings of the last run, and those before."""
    ordered = sorted(findings, key=lambda each: each.place.line)
    run, start, runs = _Run(), 0, 0
    for at, finding in enumerate(ordered):
        begins = _find_begin(run, at, finding)
        if begins is not None:
            run, start, runs = _Run(), begins, runs + 1
        _add(run, at, finding)
    if not runs:
        return _Parts(tuple(findings))
    first_call = next((at for at in range(start, len(ordered)) if _waits(ordered[at])), start)
    return _Parts(_keep(ordered, start, first_call), ordered[:start], runs)


def _leave_out(findings: Sequence[Finding]) -> _Parts:
    """Return the findings without a run that is the only one of its file, and not the last."""
    ordered = sorted(findings, key=lambda each: each.place.line)
    start = 1 + max(at for at, each in enumerate(ordered) if _waits(each))
    return _Parts(_keep(ordered, start, len(ordered)), ordered[:start], 1)


def _keep(ordered: Sequence[Finding], start: int, first_call: int) -> tuple[Finding, ...]:
    """Return what is of the whole file, and what is of the run that begins at `start`."""
    return tuple(
        each
        for at, each in enumerate(ordered)
        if each.place.line == 0 or at >= first_call or (at >= start and not _ends(each))
    )


def _find_begin(run: _Run, at: int, finding: Finding) -> int | None:
    """Return the number of the first finding of a new run, if this one shows that there is one."""
    if _waits(finding):
        before = run.waited_in.get((finding.owner.rank, finding.group), -1)
        return run.calls_end if finding.waits_in < before else None
    if not run.is_over:
        return None
    if isinstance(finding, RunStarted):
        return at
    if isinstance(finding, SetUpFound) and not finding.is_complete:
        before_it = run.processes.get((finding.group_rank, finding.size))
        return at if before_it not in (None, finding.process) else None
    return None


def _add(run: _Run, at: int, finding: Finding) -> None:
    if _waits(finding):
        run.waited_in[finding.owner.rank, finding.group] = finding.waits_in
        run.calls_end = at + 1
        run.is_over = True
    elif isinstance(finding, EndFound) or (isinstance(finding, ErrorFound) and not finding.is_line):
        run.is_over = True
    elif isinstance(finding, SetUpFound):
        run.processes[finding.group_rank, finding.size] = finding.process


def _waits(finding: Finding) -> TypeGuard[CallsFound]:
    """Return whether a watchdog of a known rank shows a call that did not end."""
    return (
        isinstance(finding, CallsFound)
        and finding.waited_s > 0
        and finding.owner.rank >= 0
        and finding.group != UNNAMED_GROUP
    )


def _ends(finding: Finding) -> bool:
    """Return whether this is how a run ends whose ranks waited too long. After the last call of a
    run and before the first one of the next, it is of the run before."""
    if isinstance(finding, ErrorFound):
        return read_error(finding.type, finding.text) is not OWN
    return isinstance(finding, EndFound)


def _numbers(parts: Iterable[Sequence[Finding]]) -> _Numbers:
    numbers: _Numbers = {}
    for finding in (each for part in parts for each in part):
        if _waits(finding):
            numbers.setdefault(finding.group, set()).add(finding.waits_in)
    return numbers


def _is_earlier(findings: Sequence[Finding], earlier: _Numbers, last: _Numbers) -> bool:
    """Return whether the only run of a file is an earlier one of the other files."""
    own = _numbers([findings])
    return any(
        _distance(max(own[group]), earlier[group]) < _distance(max(own[group]), last[group])
        for group in own.keys() & earlier.keys() & last.keys()
    )


def _distance(number: int, others: Iterable[int]) -> int:
    return min(abs(number - other) for other in others)
