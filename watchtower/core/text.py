"""Small pieces of text: names, durations, lists. All text from processes passes `clean` here."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.printable import fit_line

MAX_WORDS = 160
"""Characters of one piece of foreign text in a sentence: an exception line a pager can show."""


def clean(text: str, limit: int = MAX_WORDS) -> str:
    """Make foreign text safe to show: one printable, bounded line.

    Backticks become apostrophes, so that our own code spans stay balanced.
    """
    return fit_line(text, limit).replace("`", "'")


def clean_sentence(text: str, limit: int) -> str:
    """Clean one of our own sentences, which keeps its code spans if they are balanced.

    Two backticks in a row are not ours, and would end a span in the wrong place.
    """
    line = fit_line(text, limit)
    is_ours = line.count("`") % 2 == 0 and "``" not in line
    return line if is_ours else line.replace("`", "'")


def say_duration(seconds: float) -> str:
    """Say "9 s", "4 min" or "3 h", as exact as a reader needs."""
    if seconds < 120:
        return f"{max(round(seconds), 0)} s"
    if seconds < 7200:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"


ANOTHER_KIND = 20.0
"""From so many times on nobody straggles: the steps do something else (generation, evaluation)."""


def say_slower(slowdown: float, step_s: float) -> str:
    """Say how much longer a step takes than before; `step_s` is what it takes now."""
    lengths = f"{_say_length(step_s)} now, {_say_length(step_s / slowdown)} before"
    if slowdown >= ANOTHER_KIND:
        return f"steps now do another kind of work: one takes {lengths}"
    return f"steps take {slowdown:.1f} times as long as before ({lengths})"


def _say_length(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else say_duration(seconds)


def join_words(words: Sequence[str]) -> str:
    """Say "a", "a and b" or "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def join_sentences(*clauses: str) -> str:
    """Return "rank 3 is stopped. Its node is gpu-01", without the last full stop.

    The first clause stays as it is, so that a name can precede it. Empty clauses are left out.
    """
    first, *others = [clause.removesuffix(".") for clause in clauses if clause] or [""]
    return ". ".join([first, *map(capitalise, others)])


def capitalise(sentence: str) -> str:
    """Write the first letter large without touching the others."""
    return sentence[:1].upper() + sentence[1:]
