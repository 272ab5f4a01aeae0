"""How ranks ended, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchtower.core.diagnosis.deaths import Death, is_before
from watchtower.core.diagnosis.subjects import Lingering
from watchtower.core.diagnosis.writer.words import where_of
from watchtower.core.reading.exits import DeathKind, signal_name
from watchtower.core.reading.frames import last_component
from watchtower.core.text import clean, count_ranks, format_duration, join_sentences, join_words

AFTERMATH = {
    DeathKind.CONSEQUENTIAL: "ended after losing their connection",
    DeathKind.TERMINATED: "received SIGTERM or a similar signal",
    DeathKind.KILLED: "received SIGKILL",
    DeathKind.ABORTED: "aborted",
    DeathKind.CLEAN: "exited with code 0",
}


def write_ending(death: Death) -> str:
    """Return "exited with code 3 (after step 41, 2 s ago)"."""
    step = death.position.step
    after = "" if step is None else f"after step {step}, "
    return f"{_write_how(death)} ({after}{format_duration(death.age_s)} ago)"


def _write_how(death: Death) -> str:
    """Return "exited with code 3" or "raised ValueError: bad shard"."""
    ending = death.ending
    if ending is None or death.kind is DeathKind.VANISHED:
        return "exited (exit status unknown)"
    if ending.oom_killed:
        return "was killed by the kernel's OOM killer"
    if ending.exception_type:
        return f"raised {_write_exception(ending.exception_type, ending.exception_text)}"
    signal = signal_name(ending)
    return f"was killed by {signal}" if signal else f"exited with code {ending.code}"


def _write_exception(exception_type: str, text: str) -> str:
    """Return "ValueError: bad shard", empty without an exception."""
    name, text = clean(last_component(exception_type), 80), clean(text)
    return f"{name}: {text}" if text else name


def write_last_words(found: Lingering) -> str:
    """Return the exception that ended a program: "ValueError: bad shard"; empty without one."""
    beat = found.position.evidence.beat
    return _write_exception(beat.exception_type, beat.exception_text) if beat else ""


def write_lingering(found: Lingering) -> str:
    """Return "left its program after step 41. Its process has not exited: it has been at ...".

    The second sentence is about the process.
    """
    item, raised = found.position, write_last_words(found)
    after = "" if item.step is None else f" after step {item.step}"
    left = f"raised {raised}" if raised else "left its program"
    place = where_of(item)
    at = f": it has been at {place}" if place else ""
    return join_sentences(
        f"{left}{after}", f"its process has not exited{at} for {format_duration(item.age_s)}"
    )


def write_aftermath(others: Sequence[Death]) -> str:
    """Return how other ranks ended: "6 ranks received SIGKILL", or nothing."""
    counts = Counter(AFTERMATH.get(death.kind, "ended") for death in others)
    return join_words([f"{count_ranks(number)} {words}" for words, number in counts.items()])


def write_aftermath_in_order(others: Sequence[Death], first: Death) -> str:
    """Return "at the same moment, 2 ranks aborted; afterwards, 3 ranks received SIGKILL"."""
    by_time: dict[str, list[Death]] = {}
    for death in others:
        by_time.setdefault(_write_when(death, first), []).append(death)
    return "; ".join(f"{when} {write_aftermath(deaths)}" for when, deaths in by_time.items())


def _write_when(death: Death, first: Death) -> str:
    if is_before(death, first):
        return "before that,"
    return "at the same moment," if death.age_s > first.age_s else "afterwards,"
