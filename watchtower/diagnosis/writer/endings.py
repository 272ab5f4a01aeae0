"""How ranks ended, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchtower.diagnosis.deaths import Death, is_before
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.subjects import Deaths, Lingering
from watchtower.diagnosis.writer.words import name_rank, where_of, write_likewise, write_others
from watchtower.evidence.errors import split_lines
from watchtower.evidence.exits import DeathKind, signal_name
from watchtower.evidence.frames import last_component
from watchtower.wire.report import LINE_END
from watchtower.writing.text import clean, count_ranks, format_duration, join_sentences, join_words

MAX_MESSAGE = 210
"""Characters of a message of several lines: with the name of the rank it fits into an alert."""

MAX_SECOND, MAX_LAST = 40, 128
"""Characters of the second and the last line. The first one has the rest."""

MAX_FOLDERS = 3
"""Folders of a path that is shown in the first one of several lines."""

AFTERMATH = {
    DeathKind.CONSEQUENTIAL: "ended after losing {their} connection",
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


def summarise_ended(picture: Picture, deaths: Deaths, suspects: Sequence[Position]) -> str:
    """Return how the suspects ended, and what became of the others.

    Without suspects: "all 8 ranks exited with code 3 (after step 41, 2 s ago). No rank is known to
    be the first". If their texts differ, the first one is quoted.
    """
    first, others = deaths.first[0], write_aftermath(deaths.others)
    ending = write_ending(first)
    if suspects:
        likewise, waiting = write_likewise(suspects), write_others(picture, suspects)
        return join_sentences(f"{name_rank(first.position)} {ending}", likewise, waiting, others)
    if len({death.shape for death in deaths.first}) > 1:
        ending = f"ended by errors: rank {first.rank} {ending}"
    elif ending.startswith("was "):
        ending = f"were {ending[4:]}"
    ranks = count_ranks(len(picture.by_rank))
    is_all = len(deaths.first) == len(picture.by_rank)
    count = f"all {ranks}" if is_all else f"{len(deaths.first)} of {ranks}"
    return join_sentences(f"{count} {ending}", others, "no rank is known to be the first")


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
    name, words = clean(last_component(exception_type), 80), _write_message(split_lines(text))
    return f"{name}: {words}" if words else name


def _write_message(lines: Sequence[str]) -> str:
    """Return the first two lines and the last one, which is closest to the cause."""
    if len(lines) < 2:
        return clean("".join(lines))
    first, *between, last = lines
    kept = [clean(line, MAX_SECOND) for line in between if not line.endswith(":")][:1]
    kept.append(clean(last, MAX_LAST))
    room = MAX_MESSAGE - sum(map(len, kept)) - len(LINE_END) * len(kept)
    return LINE_END.join([clean(_shorten_paths(first), room), *kept])


def _shorten_paths(line: str) -> str:
    """Return a line with the last part of long paths only: places in the source of a library."""
    words = (
        word.rpartition("/")[2] if word.count("/") > MAX_FOLDERS else word for word in line.split()
    )
    return " ".join(words)


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
    return join_words(
        [
            f"{count_ranks(number)} {words.format(their='its' if number == 1 else 'their')}"
            for words, number in counts.items()
        ]
    )


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
