"""How ranks ended, by the tracebacks in their output and by the table of their launcher."""

from __future__ import annotations

import signal
from dataclasses import replace

from watchtower.evidence.error_texts import OWN, find_error_texts, read_error
from watchtower.evidence.exits import DeathKind, classify_ending
from watchtower.fleet.found_files import Found, RankFound
from watchtower.readers.findings import ErrorFound
from watchtower.wire.bounds import MAX_AGE_S, MAX_TEXT
from watchtower.wire.report import LINE_END, Ending, EndingKind

GIVING_UP = frozenset({DeathKind.CONSEQUENTIAL, DeathKind.ABORTED, DeathKind.TERMINATED})
"""How a rank ends that has waited: by its own timeout, by its watchdog, or by its launcher. It may
also end so with exit code 1, if nothing shows its exception."""

UNNAMED_ERROR = "Error"
"""Stands for the type of an exception that a line does not have."""

OOM_KILL = "oom_kill"

MAX_LINES_AFTER = 200
"""Lines after a traceback that ended its rank: those of its watchdog, and of its launcher."""


def find_endings(found: Found) -> dict[int, Ending]:
    """Return how ranks ended. A rank that waited until it gave up counts as one that waits."""
    moments = [own.end.at for own in found.ranks.values() if own.end and own.end.at >= 0]
    last = max(moments, default=0.0)
    endings = ((rank, _end_of(own, last)) for rank, own in found.ranks.items())
    return {
        rank: ending
        for rank, ending in endings
        if ending is not None and not _gave_up(found.ranks[rank], ending)
    }


def _end_of(own: RankFound, last: float) -> Ending | None:
    end, error = own.end, _last_error(own)
    is_oom = end is not None and end.is_oom
    if is_oom or any(each.observation.name == OOM_KILL for each in own.observed):
        return Ending(kind=EndingKind.SIGNAL, code=signal.SIGKILL, age_s=0.0, oom_killed=True)
    if end is None and error is None:
        return None
    code = 1 if end is None else end.code
    return Ending(
        kind=EndingKind.SIGNAL if code < 0 else EndingKind.EXIT,
        code=abs(code),
        age_s=min(last - end.at, MAX_AGE_S) if end is not None and end.at >= 0 else 0.0,
        exception_type=error.type if error else "",
        exception_text=error.text if error else "",
    )


def _last_error(own: RankFound) -> ErrorFound | None:
    """Return the exception that ended a rank, with what NCCL warned of; else such a warning, if
    its meaning is known."""
    first = next((each for each in own.warnings if _is_known(each)), None)
    error = own.error if own.error is not None and _is_near_end(own, own.error) else None
    if error is None and first is None:
        return _last_line_of_error(own)
    if error is None or first is None:
        return error or (first if first is not None and _is_near_end(own, first) else None)
    return replace(error, text=f"{error.text}{LINE_END}{first.text}"[:MAX_TEXT])


def _last_line_of_error(own: RankFound) -> ErrorFound | None:
    """Return the first of the lines about known faults at the end of the output. A rank that has
    waited for others after such a line went on without it."""
    if own.has_waited:
        return None
    for each in own.error_lines:
        found = [match for match in find_error_texts(each.text) if match.row.names_fault]
        if found and _is_near_end(own, each):
            text = each.text if each.type else each.text[found[0].start :]
            return replace(each, type=each.type or UNNAMED_ERROR, text=text)
    return None


def _is_known(warning: ErrorFound) -> bool:
    return read_error(warning.type, warning.text) is not OWN


def _is_near_end(own: RankFound, error: ErrorFound) -> bool:
    """Return whether an error is near the end of the output: programs go on after some."""
    file = next((each for each in own.files if each.name == error.place.file), None)
    return file is None or file.lines - error.place.line <= MAX_LINES_AFTER or len(file.ranks) > 1


def _gave_up(own: RankFound, ending: Ending) -> bool:
    kind = classify_ending(ending)
    return own.has_waited and (kind in GIVING_UP or kind is DeathKind.EXIT_ONE)
