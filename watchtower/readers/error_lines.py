"""Lines with the text of a known error, outside of a traceback.

Loggers of trainers, C++ and wrappers of torchrun print an error without the words with which
Python begins a traceback. Which texts are known is data: the rows with `marks` in
`watchtower/evidence/facts/error_texts.toml`. What they mean is read where the case is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from watchtower.readers.findings import ErrorFound, Finding, Owner, Place
from watchtower.readers.nccl_lines import WARN_WORDS
from watchtower.readers.text_lines import Line
from watchtower.service.toml_tables import read_table
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.writing.printable import printable

WORDS = tuple(
    mark.encode()
    for row in read_table("watchtower.evidence.facts", "error_texts")["error"]
    for mark in row.get("marks", ())
)

_MARKS = re.compile("|".join(re.escape(word.decode()) for word in WORDS))
_WARN = WARN_WORDS[0].decode()
_HEAD = re.compile(r"\b([A-Z][A-Za-z]{0,64}(?:Error|Exception))(?:: |'?\s{1,4}what\(\): )")

BEFORE = 160
"""Characters before the known words that are kept: what a sentence begins with."""


def read(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield the error of a line. A warning of NCCL has a reader of its own."""
    text = lines[0].text
    found = _MARKS.search(text)
    if found is None or _WARN in text:
        return
    head = next(iter(_HEAD.finditer(text, 0, found.start())), None)
    begin = head.end() if head else max(0, found.start() - BEFORE)
    yield ErrorFound(
        place=place,
        owner=owner,
        type=printable(head[1], MAX_NAME) if head else "",
        text=printable(text[begin:], MAX_TEXT),
        is_line=True,
    )
