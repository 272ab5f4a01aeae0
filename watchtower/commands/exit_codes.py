"""Exit codes. They have the same meanings for all commands."""

from __future__ import annotations

import errno

from watchtower.commands.client import NoAnswerError, NotFoundError

DONE, TROUBLE, UNUSABLE, UNREACHABLE, NOT_FOUND = 0, 1, 2, 3, 4
NOT_WRITTEN, NOT_JUDGED, INTERRUPTED = 5, 6, 130

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to an open file. Unlike an error of `open`, they do not name the file."""

MEANINGS = {
    DONE: "done, or healthy",
    TROUBLE: "trouble, or another answer than expected",
    UNUSABLE: "wrong usage: an option, a setting, a file, a token, or a refused request",
    UNREACHABLE: "no tower answers, or the tower failed",
    NOT_FOUND: "the tower has no such job, incident or silence",
    NOT_WRITTEN: "the output cannot be written, for example because the disk is full",
    NOT_JUDGED: "not judged yet: too little is known to call the job healthy",
    INTERRUPTED: "interrupted with Ctrl-C",
}


def exit_code_of(error: Exception) -> int:
    """Return the exit code for an error that ended a command."""
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, OSError) and not error.filename and error.errno in WRITE_ERRORS:
        return NOT_WRITTEN
    return UNREACHABLE if isinstance(error, NoAnswerError) else UNUSABLE
