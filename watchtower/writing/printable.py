"""Makes untrusted text safe for one line of a terminal or a log, and for a label.

All cleaning of text in tower, agent, commands and drills uses `printable`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256

ELLIPSIS = "…"

MAX_LABEL = 256
"""Characters of a label's value. Names have at most as many, but an escaped name may have more."""

_MARKUP = "\\<>`*~"
"""Characters that chat programs may interpret as a mention, a link, code or markup."""

_NUMBER = re.compile(r"~[0-9]{1,2}\Z")
"""The number behind the label of a job whose name another job has, too."""


def printable(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text, with spaces for unprintable characters.

    These are control and direction characters, line breaks and surrogates.
    """
    # The heartbeat client does the same, so that a name from both sources is the same name.
    head = text[:limit]
    if not head.isprintable():
        head = "".join(char if char.isprintable() else " " for char in head)
    return head.strip()


def fit_line(text: str, limit: int) -> str:
    """Return one line with single spaces, and with an ellipsis if it is longer than `limit`."""
    line = " ".join(printable(text, limit * 4).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + ELLIPSIS


@lru_cache(maxsize=4096)
def label(text: str) -> str:
    """Return untrusted text as a label value: printable, bounded, without markup of chats.

    Different texts have different values, so that a job cannot imitate another one. The number of
    a twin (`mine~2`) stays readable: a single tilde before digits is not markup.
    """
    number = match.group() if (match := _NUMBER.search(text)) else ""
    head = text.removesuffix(number)
    shown = "".join(c if c.isprintable() and c not in _MARKUP else _escape(c) for c in head)
    shown += number
    if len(shown) <= MAX_LABEL:
        return shown
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{shown[: MAX_LABEL - len(digest) - 1]}~{digest}"


def _escape(character: str) -> str:
    number = ord(character)
    if character == "\\":
        return "\\\\"
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
