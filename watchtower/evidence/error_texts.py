"""Reads the texts of errors: what they mean, whom they blame, and what helps.

The table is `facts/error_texts.toml`. Its first row that matches counts. A text comes from a
process or a log, so each pattern is linear, and only a bounded part of a text is matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from watchtower.evidence.facts import TextPattern, cut, part, read_facts, whole
from watchtower.evidence.frames import last_component
from watchtower.wire.report import LINE_END
from watchtower.wire.verdict import Domain

MESSAGE_END = 256
"""Characters of each end of a message that are matched: together the room in a heartbeat file."""

MAX_WORDS = 256
"""Words of a message that are compared with those of another rank."""

MAX_RANKS = 64
"""Ranks that one message names."""

MAX_LOG_TEXT = 16_384
"""Characters of a text of a log in which errors are searched. Shippers of logs cut lines there."""


class Strength(Enum):
    """What an error shows about the rank that raises it."""

    DECIDES = "decides"
    """The rank has the fault, whatever else has ended."""
    SUPPORTS = "supports"
    """The same, unless another rank may have ended before."""
    LOST = "lost"
    """Another rank or service is gone. Of several ranks that raise it, the first one counts."""
    WAITED = "waited"
    """The rank waited for others until it gave up. When it did so shows nothing."""
    ORDERED = "ordered"
    """It is raised for a signal, or an order from outside."""


class Blames(Enum):
    """Where the fault is, by the text alone."""

    RANK = "rank"
    NODE = "node"
    GPU = "gpu"
    PEER = "peer"
    """Another rank of the job."""
    OTHER_END = "other_end"
    """The other end of a connection: a rank, or a service outside the job."""
    SERVICE = "service"
    NOBODY = "nobody"
    """It only follows from an earlier error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorText:
    """One row of the table."""

    name: str
    type: TextPattern | None = None
    """None if the text alone is enough."""
    text: TextPattern
    means: str = ""
    """A sentence for the person on call."""
    strength: Strength = Strength.DECIDES
    blames: Blames = Blames.RANK
    domain: Domain | None = None
    """Whom to call, if the text shows it."""
    ranks: TextPattern | None = None
    """Its group is the number of a rank that the text says differs."""
    beside: tuple[str, ...] = ()
    """Names or families of observations of the node or of the rank's GPU: the same fault."""
    proof: tuple[str, ...] = ()
    """Names or families of observations of the process: they show the fault without its text, too.
    """
    advice: str = ""
    """What helps, with names in braces; empty if the advice of the cause is enough."""

    @property
    def is_consequence(self) -> bool:
        """Whether it is raised because another rank is lost or late."""
        return self.strength in (Strength.LOST, Strength.WAITED)

    @property
    def may_follow(self) -> bool:
        """Whether a rank may raise it because another rank has ended: then its time counts."""
        return self.strength in (Strength.SUPPORTS, Strength.LOST)

    @property
    def names_fault(self) -> bool:
        """Whether the text shows what is wrong, and not only that something is."""
        return self.strength in (Strength.DECIDES, Strength.SUPPORTS) and bool(self.means)

    def find_ranks(self, text: str) -> frozenset[int]:
        """Return the ranks that a message of this row says differ from the one that raised it."""
        if self.ranks is None:
            return frozenset()
        found = self.ranks.regex.finditer(cut(text, MESSAGE_END))
        return frozenset(int(match[1]) for match in islice(found, MAX_RANKS))

    def is_beside(self, name: str) -> bool:
        """Return whether an observation with this name shows the same fault."""
        return _is_named(name, self.beside) or self.is_proof(name)

    def is_proof(self, name: str) -> bool:
        """Return whether an observation of a process with this name shows the fault by itself."""
        return _is_named(name, self.proof)


def _is_named(name: str, names: tuple[str, ...]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in names)


def _read_row(entry: dict[str, Any]) -> ErrorText:
    domain = entry.get("domain")
    return ErrorText(
        name=entry["name"],
        type=whole(entry["type"]) if "type" in entry else None,
        text=part(entry.get("text", ""), re.IGNORECASE, MESSAGE_END),
        means=entry["means"],
        strength=Strength(entry["strength"]),
        blames=Blames(entry["blames"]),
        domain=Domain(domain) if domain else None,
        ranks=part(entry["ranks"], re.IGNORECASE) if "ranks" in entry else None,
        beside=tuple(entry.get("beside", ())),
        proof=tuple(entry.get("proof", ())),
        advice=entry.get("advice", ""),
    )


ERROR_TEXTS = tuple(map(_read_row, read_facts("error_texts")["error"]))
"""All rows, the first one that matches counts."""

OWN = ErrorText(name="", text=part(""))
"""An error that no row is about is the rank's own."""


@lru_cache(maxsize=65536)
def read_error(exception_type: str, text: str) -> ErrorText:
    """Return what an exception shows, by its class name without module, and by its message."""
    name = last_component(exception_type)
    found = (
        row
        for row in ERROR_TEXTS
        if (row.type is None or row.type.matches(name)) and row.text.matches(text)
    )
    return next(found, OWN)


class Match(NamedTuple):
    """A row that a part of a text is about."""

    row: ErrorText
    start: int
    end: int
    """The part is `text[start:end]`. For a row about a type, it begins with the type's name."""


_TYPES = "|".join(sorted({row.type.regex.pattern for row in ERROR_TEXTS if row.type}))
_HEAD = re.compile(
    rf"(?<![\w.])(?:[A-Za-z_]\w{{0,63}}\.){{0,8}}({_TYPES})(?=:\s|\s*$)", re.MULTILINE
)
"""An exception of a type in the table, as Python prints it: `torch.distributed.DistStoreError:`."""

MAX_HEADS = 16
"""Exceptions of one text that are read: a chain of them ("during handling of ...") is shorter."""


def find_error_texts(text: str) -> tuple[Match, ...]:
    """Return the errors that a line or paragraph of a log is about, in the order of the table.

    Of each row only the first place is returned. The first match is the one that counts.
    """
    text = text[:MAX_LOG_TEXT]
    heads = tuple(islice(_HEAD.finditer(text), MAX_HEADS))
    found = ((row, _find_row(row, text, heads)) for row in ERROR_TEXTS)
    return tuple(Match(row, *span) for row, span in found if span is not None)


def _find_row(row: ErrorText, text: str, heads: Iterable[re.Match[str]]) -> tuple[int, int] | None:
    """Return where the text of a row is; of a row about a type, from the type to that text."""
    if row.type is None:
        match = row.text.regex.search(text)
        return match.span() if match else None
    for head in heads:
        # An exception is followed by its message. The lines after that may be of another one.
        message = text[head.end() :].lstrip(": ")
        if row.type.matches(head[1]) and (match := row.text.regex.search(message)):
            return head.start(), len(text) - len(message) + match.end()
    return None


@lru_cache(maxsize=65536)
def shape_of(exception_type: str, text: str) -> str:
    """Return what exceptions of one fault have in common on several ranks.

    Words with digits and paths are left out: addresses, pids, numbers of records, names of files.
    """
    words = text[: 2 * MESSAGE_END].split()[:MAX_WORDS]
    kept = (word for word in words if not any(char.isdigit() or char == "/" for char in word))
    return " ".join((exception_type, *kept))


def split_lines(text: str) -> list[str]:
    """Return the lines of a message that are not blank."""
    return [line for line in map(str.strip, text.split(LINE_END)) if line]
