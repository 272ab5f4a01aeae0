"""The name of a program from its command line, without arguments, which may contain secrets."""

from __future__ import annotations

from collections.abc import Sequence

MAX_WORDS = 16
"""Words of a command line that are searched for the name of a module."""

_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
"""Options of Python whose value is the next word."""


def name_program(command: Sequence[str]) -> str:
    """Return "rsync", or "python3 -m package.module" for a module; "" without a command line.

    The result, split at spaces and named again, does not change.
    """
    # A process may write a title into its first word. Only the first part of it is a program.
    first = command[0].split(maxsplit=1) if command else []
    if not first:
        return ""
    program = first[0].rpartition("/")[2]
    module = _find_module(command[1:MAX_WORDS]) if is_python(program) else ""
    return f"{program} -m {module}" if module else program


def is_python(program: str) -> bool:
    """Return whether a program, named without its folder, is a Python interpreter."""
    return program.startswith(("python", "pypy"))


def _find_module(words: Sequence[str]) -> str:
    waiting = iter(words)
    for word in waiting:
        if word.startswith("-m"):
            module = word[2:] or next(waiting, "")
            return module if all(part.isidentifier() for part in module.split(".")) else ""
        if not word.startswith("-") or word == "-c":
            break
        if word in _WITH_VALUE:
            next(waiting, "")
    return ""
