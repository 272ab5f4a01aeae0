"""Reads the end of a process's output in a separate process, which can be killed if a file hangs.

The argument is {"process": "/proc/PID", "lines": N}. It prints a list with an entry for each file.
It reads only what standard output and standard error are: regular files, not of pseudo file
systems, that the process itself may read. Pipes and terminals would lose what is read from them.
Standard library only.

The lines are made safe to send: clean, short, without obvious secrets. No pattern hides every
secret: the output of a program is sent only if an operator has asked for it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

from agent.dumpers.user_files import (
    FileRights,
    NotReadable,
    check_readable,
    parse_rights,
    read_table,
    reopen,
)
from watchtower.wire.series import MAX_OUTPUT_LINE
from watchtower.writing.printable import ELLIPSIS, printable
from watchtower.writing.secrets import HIDDEN, hide_secrets

MAX_INDENT = 40
"""Spaces at the beginning of a line that remain: tracebacks need them."""

MAX_RAW_LINE = 4096
"""Characters of a line that are cleaned. Only its beginning is shown."""

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
"""Sequences for a terminal: colours, movements of the cursor, titles and links."""

_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z ]{0,32}PRIVATE KEY-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{60,80}")
"""A whole line of a key whose beginning is not among the lines."""


def clean_lines(raw: bytes, count: int, *, is_cut: bool) -> tuple[str, ...]:
    """Return the last `count` lines that are not empty, oldest first.

    `is_cut`: the first line of `raw` begins in the middle, and is left out.
    """
    lines = raw.decode("utf-8", "replace").split("\n")
    if is_cut:
        lines = lines[1:]
    return tuple(_hide_keys([line for line in map(_clean, lines[-4 * count :]) if line])[-count:])


def _clean(line: str) -> str:
    # A progress bar writes its line again and again; the last version counts.
    versions = [part for part in line.rstrip("\r").split("\r") if part.strip()]
    text = _ESCAPES.sub("", versions[-1][:MAX_RAW_LINE]) if versions else ""
    indent = min(MAX_INDENT, len(text) - len(text.lstrip(" \t")))
    text = hide_secrets(printable(text, MAX_RAW_LINE))
    if not text:
        return ""
    text = " " * indent + text
    return text if len(text) <= MAX_OUTPUT_LINE else text[: MAX_OUTPUT_LINE - 1] + ELLIPSIS


def _hide_keys(lines: list[str]) -> list[str]:
    """Return the lines without private keys of several lines."""
    shown, is_key = list[str](), False
    for line in lines:
        is_key = is_key or bool(_KEY_BEGINS.search(line))
        shown.append(HIDDEN if is_key or _KEY_LINE.fullmatch(line) else line)
        is_key = is_key and not _KEY_ENDS.search(line)
    return shown


STREAMS = {1: "stdout", 2: "stderr"}

BOTH = "output"

TAIL_BYTES = 65_536
"""Bytes read at the end of a file. Twenty lines have 2 kB; progress bars write long ones."""


def main() -> None:
    """Print the last lines of each file."""
    question = json.loads(sys.argv[1])
    print(json.dumps(read_output(question["process"], question["lines"])), flush=True)


def read_output(process: str, count: int) -> list[dict[str, object]]:
    """Return the last lines of the process's standard output and error, each file once."""
    found: dict[tuple[int, int], dict[str, object]] = {}
    try:
        rights = parse_rights(read_table(f"{process}/status"))
    except (OSError, ValueError):
        return []
    for number, stream in STREAMS.items():
        try:
            file, entry = _read_tail(f"{process}/fd/{number}", process, rights, count)
        except (OSError, ValueError, NotReadable):
            continue
        known = found.setdefault(file, {**entry, "stream": stream})
        if known["stream"] != stream:
            known["stream"] = BOTH
    return list(found.values())


def _read_tail(
    path: str, process: str, rights: FileRights, count: int
) -> tuple[tuple[int, int], dict[str, object]]:
    """Return device and inode of an open file of a process, and its last lines.

    A process can open its own file by this path, too: whatever the folders above it allow.
    """
    if not os.readlink(path).startswith("/"):
        raise NotReadable  # a pipe or a socket, which is not even opened
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = check_readable(descriptor, process, rights)
        file = reopen(descriptor)
    finally:
        os.close(descriptor)
    try:
        size = os.fstat(file).st_size
        raw = os.pread(file, TAIL_BYTES, max(0, size - TAIL_BYTES))
    finally:
        os.close(file)
    lines = clean_lines(raw, count, is_cut=size > TAIL_BYTES)
    age_s = max(0.0, time.time() - status.st_mtime)
    return (status.st_dev, status.st_ino), {"lines": lines, "age_s": age_s}
