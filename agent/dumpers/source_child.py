"""Reads source files for the agent in a separate process, which can be killed if a file hangs.

Each argument is a question, {"process": "/proc/PID", "path": ..., "lines": [...]}. Each printed
line answers one question, in the same order. Only line numbers of a file are printed. It reads only
regular files that the process itself may read, and no files of pseudo file systems. Standard
library only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent.dumpers.user_files import (
    SEARCH,
    NotReadable,
    check_readable,
    open_in_root,
    parse_rights,
    read_table,
    reopen,
)

MAX_LOOPS = 8
"""The innermost loops, as many as the message format allows."""

TAB = 8
"""A tab continues to the next multiple of eight columns, as in the Python language reference."""

_TOKEN = re.compile(
    r"""
    (?P<quotes> \"{3} | '{3} | \" | ' )
  | (?P<comment> \#[^\n]* )
  | (?P<joined> \\\n )
  | (?P<open> [(\[{] )
  | (?P<close> [)\]}] )
  | (?P<newline> \n )
    """,
    re.VERBOSE,
)
_IN_STRING = {
    quotes: re.compile(rf"\\.|{quotes}" + r"|(?=\n)" * (len(quotes) == 1), re.DOTALL)
    for quotes in ('"', "'", '"""', "'''")
}
"""What counts inside of a string: an escaped character, its quotes, and in a short string the end
of the line."""

_LOOP = re.compile(r"(?:async[ \t\f]+)?for\b|while\b")
_SCOPE = re.compile(r"(?:async[ \t\f]+)?def\b|class\b|@")


class _Statement(NamedTuple):
    """One statement of the source, or the header of a compound one."""

    first: int
    last: int
    """First and last line, from 1."""
    indent: int
    is_loop: bool
    is_scope: bool


def find_loops(source: str, lines: Iterable[int]) -> dict[int, tuple[int, ...] | None]:
    """Return for each line the first lines of the loops around it, innermost first, in its
    function.

    None if unknown: the line has no code, or it has a `def`, `class` or decorator. Such a line
    belongs both to the outer function and to the one that begins. The header of a loop counts as
    inside it: a training loop waits for its next batch there. The `else` of a loop does not.

    This is a scanner of our own, by indentation alone: the source belongs to another user, it can
    crash a parser, and the file may be written for another version of Python. Limit: an f-string in
    single quotes whose braces span several lines is not understood (Python >= 3.12).
    """
    statements = _split(source.replace("\r\n", "\n").replace("\r", "\n"))
    return {line: _loops_around(statements, line) for line in lines}


def _loops_around(statements: list[_Statement], line: int) -> tuple[int, ...] | None:
    place = bisect_right(statements, line, key=lambda statement: statement.first) - 1
    if place < 0 or statements[place].last < line or statements[place].is_scope:
        return None
    here = statements[place]
    found = [here.first] if here.is_loop else []
    indent = here.indent
    for at in range(place - 1, -1, -1):
        statement = statements[at]
        if statement.indent >= indent:
            continue
        if statement.is_scope:
            break
        if statement.is_loop:
            found.append(statement.first)
        indent = statement.indent
    return tuple(found[:MAX_LOOPS])


def _split(source: str) -> list[_Statement]:
    """Return the statements: each is one line, or several lines joined by brackets or strings.

    Two statements with a semicolon between them count as one: no loop can begin after a semicolon.
    """
    statements: list[_Statement] = []
    depth = begin = 0
    line = first = 1
    for kind, start, end in _tokens(source):
        if kind == "newline" and depth == 0:
            _add(statements, source[begin:start], first, line)
            begin, first = end, line + 1
        elif kind == "open":
            depth += 1
        elif kind == "close":
            depth = max(0, depth - 1)
        line += source.count("\n", start, end)
    _add(statements, source[begin:], first, line)
    return statements


def _tokens(source: str) -> Iterator[tuple[str | None, int, int]]:
    """Yield kind, start and end of each string, comment, bracket, line end and joined line.

    Strings are not matched by one pattern: a file made for it would cost 150 bytes of memory for
    each escaped character.
    """
    end = 0
    while token := _TOKEN.search(source, end):
        end = token.end()
        if token.lastgroup == "quotes":
            end = _end_of_string(source, end, token.group())
        yield token.lastgroup, token.start(), end


def _end_of_string(source: str, begin: int, quotes: str) -> int:
    marks = _IN_STRING[quotes].finditer(source, begin)
    return next((mark.end() for mark in marks if mark.group()[:1] != "\\"), len(source))


def _add(statements: list[_Statement], text: str, first: int, last: int) -> None:
    code = text.lstrip(" \t\f")
    if code.strip() and not code.startswith("#"):
        indent = _columns(text[: len(text) - len(code)])
        loop, scope = bool(_LOOP.match(code)), bool(_SCOPE.match(code))
        statements.append(_Statement(first, last, indent, loop, scope))


def _columns(space: str) -> int:
    columns = 0
    for char in space.rpartition("\f")[2]:
        columns += TAB - columns % TAB if char == "\t" else 1
    return columns


MAX_SOURCE_BYTES = 1 << 20
"""Longer files are generated; no loop is searched in them."""

MAX_LINE_BYTES = 65_536
"""Files with longer lines are generated too."""


def main() -> None:
    """Answer every question. Each answer is printed before the next file is opened.

    The first line is empty: a delay after it comes from a file, not from the start of the process.
    """
    print("{}", flush=True)
    for argument in sys.argv[1:]:
        question = json.loads(argument)
        try:
            reply: dict[str, object] = answer(
                question["process"], question["path"], question["lines"]
            )
        except (OSError, ValueError, NotReadable):
            reply = {}
        print(json.dumps(reply), flush=True)


def answer(process: str, path: str, lines: list[int]) -> dict[str, object]:
    """Return the loops around each line (null if unknown), and when the file changed."""
    source, changed_s = read_source(process, path)
    loops = find_loops(source, lines)
    return {"loops": [loops[line] for line in lines], "changed_s": changed_s}


def read_source(process: str, path: str) -> tuple[str, float]:
    """Return the text of a file as a process sees it, and its modification time (wall clock).

    Raises NotReadable, OSError or ValueError if it is not a regular file that the process may read.
    """
    rights = parse_rights(read_table(f"{process}/status"))

    def check(folder: int) -> None:
        if not rights.has(os.fstat(folder), SEARCH):
            raise NotReadable

    found = open_in_root(f"{process}/root", path, check)
    try:
        check_readable(found, process, rights)
        file = reopen(found)
    finally:
        os.close(found)
    with open(file, "rb") as opened:
        changed_s = os.fstat(file).st_mtime
        raw = opened.read(MAX_SOURCE_BYTES + 1)
    if len(raw) > MAX_SOURCE_BYTES or b"\0" in raw:
        raise NotReadable
    if max(map(len, raw.split(b"\n"))) > MAX_LINE_BYTES:
        raise NotReadable
    return raw.decode("utf-8-sig", "replace"), changed_s
