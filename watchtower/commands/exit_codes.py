"""Exit codes. They have the same meanings for all commands."""

from __future__ import annotations

from watchtower.commands.client import NoAnswerError, NotFoundError

DONE, TROUBLE, UNUSABLE, UNREACHABLE, NOT_FOUND, INTERRUPTED = 0, 1, 2, 3, 4, 130

MEANINGS = {
    DONE: "done, or healthy",
    TROUBLE: "trouble, or another answer than expected",
    UNUSABLE: "wrong usage: an option, a setting, a file, a token, or a refused request",
    UNREACHABLE: "no tower answers, or the tower failed",
    NOT_FOUND: "the tower has no such job, incident or silence",
    INTERRUPTED: "interrupted with Ctrl-C",
}


def exit_code_of(error: Exception) -> int:
    """Return the exit code for an error that ended a command."""
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    return UNREACHABLE if isinstance(error, NoAnswerError) else UNUSABLE
