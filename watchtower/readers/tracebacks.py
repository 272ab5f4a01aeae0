"""Python tracebacks in logs, with the prefix of a launcher before each line or without.

The last line has the type and the message. Of exceptions that were raised while another one was
handled, the last one ended the program, and the first one is why. The last one counts: its text
contains the reason in the libraries of training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from watchtower.readers.findings import ErrorFound, Finding, Owner, Place
from watchtower.readers.text_lines import Line
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.report import LINE_END
from watchtower.writing.printable import printable

START = "Traceback (most recent call last):"
WORDS = (START.encode(),)

MAX_LINES = 400
"""Lines of one traceback that are read: Python's stacks have at most 1000 frames, and in programs
that train rarely 60."""

MAX_MESSAGE_LINES = 8
"""Lines of the message that are kept: the last one of NCCL's text has the reason."""

_END = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: (?P<text>.{0,4000}))?$")
_CONTINUES = re.compile(r"\s|\+|\||~|\^|$")


def read(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield the exception of the traceback that begins with the first of these lines."""
    prefix = lines[0].text.partition(START)[0]
    own = [line.text[len(prefix) :] for line in lines[1:] if line.text.startswith(prefix)]
    for at, text in enumerate(own):
        if _CONTINUES.match(text):
            continue
        found = _END.match(text)
        if found is None:
            return
        message = [found["text"] or "", *_rest(own[at + 1 :])]
        yield ErrorFound(
            place=place,
            owner=owner,
            type=printable(found["type"], MAX_NAME),
            text=printable(LINE_END.join(filter(None, message)), MAX_TEXT),
        )
        return


def _rest(lines: Sequence[str]) -> Iterator[str]:
    """Yield further lines of a message: until an empty one, or one of another kind."""
    for line in lines[:MAX_MESSAGE_LINES]:
        if not line.strip() or line.startswith(("Traceback", "[", "During", "The above")):
            return
        yield line.strip()
