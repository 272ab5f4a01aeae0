"""Formats names, durations and lists. All text from processes must pass through `clean`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from watchtower.writing.printable import fit_line

MAX_WORDS = 160
"""Most characters of one text from a process in a sentence: enough for an exception's message, and
short enough for an alert."""

MAX_NODES = 4
"""Nodes named in one sentence; of a whole cluster without py-spy the others are counted."""

_PLAIN = re.compile(r"[ -~]{1,128}")
"""Printable ASCII: neither a line end nor an escape sequence, and no letter that imitates another
one."""


def clean(text: str, limit: int = MAX_WORDS) -> str:
    """Return text from a process as one printable line of at most `limit` characters.

    Backticks become apostrophes, because they would break the code spans of our own sentences.
    """
    return fit_line(text, limit).replace("`", "'")


def clean_sentence(text: str, limit: int) -> str:
    """Return one of our own sentences as one printable line; balanced code spans are kept.

    We never write two backticks in a row. They come from a process, and would end a span in the
    wrong place.
    """
    line = fit_line(text, limit)
    is_ours = line.count("`") % 2 == 0 and "``" not in line
    return line if is_ours else line.replace("`", "'")


def quote_name(name: str) -> str:
    """Return a name for the shell; empty for a name that makes no command.

    A name that begins with a dash would be an option.
    """
    is_usable = _PLAIN.fullmatch(name) is not None and not name.startswith("-")
    return shlex.quote(name) if is_usable else ""


def format_duration(seconds: float) -> str:
    """Return a duration such as "9 s", "4 min" or "3 h"."""
    if seconds < 120:
        return f"{max(round(seconds), 0)} s"
    if seconds < 7200:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"


def format_count(number: int, unit: str) -> str:
    """Return "0 ranks", "1 rank" or "7 ranks"."""
    return f"{number} {unit}{'' if number == 1 else 's'}"


def count_ranks(number: int) -> str:
    """Return "1 rank" or "7 ranks"."""
    return format_count(number, "rank")


def format_percent(share: float) -> str:
    """Return "97 %". No verdict is certain, so the largest number is 99."""
    return f"{min(int(share * 100 + 0.5), 99)} %"


ANOTHER_KIND = 20.0
"""If steps are at least so many times slower, no rank is a straggler: the steps do other work, such
as generation or evaluation."""


def write_slower(slowdown: float, step_s: float) -> str:
    """Return a clause on how much longer a step takes than before. `step_s`: its length now."""
    lengths = f"{_format_step(step_s)} now, {_format_step(step_s / slowdown)} before"
    if slowdown >= ANOTHER_KIND:
        return f"steps now do another kind of work: one takes {lengths}"
    return f"steps take {slowdown:.1f} times as long as before ({lengths})"


def _format_step(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else format_duration(seconds)


def name_nodes(nodes: Sequence[str]) -> str:
    """Return the names of some nodes, and the number of the others."""
    more = " nodes" if len(nodes) > MAX_NODES else ""
    return name_some([clean(node, 64) for node in nodes[:MAX_NODES]], len(nodes)) + more


def name_some(names: Sequence[str], number: int) -> str:
    """Return "a, b and 3 more" for the first names of `number` things."""
    more = number - len(names)
    return f"{', '.join(names)} and {more} more" if more > 0 else ", ".join(names)


def join_words(words: Sequence[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
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
    """Return the sentence with its first letter in upper case; the others do not change."""
    return sentence[:1].upper() + sentence[1:]
