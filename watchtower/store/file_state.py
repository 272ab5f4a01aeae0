"""The file of the store: whether it is damaged or has no room, and its lock."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from pathlib import Path
from typing import TextIO

from watchtower.store.migrations import StoreError
from watchtower.store.private_files import make_private_file, make_private_folder

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

ERROR, BUSY, READ_ONLY, IO_ERROR = 1, 5, 8, 10
CORRUPT, FULL, CANNOT_OPEN, NOT_A_DATABASE = 11, 13, 14, 26
"""Result codes of SQLite."""

NO_ROOM_IN_SQLITE = frozenset({FULL, IO_ERROR})
"""Errors that may be temporary: they prevent writes, and the tower still starts and detects."""

DAMAGED = frozenset({NOT_A_DATABASE, CORRUPT})

TEXTS = {
    "unable to open": CANNOT_OPEN,
    "readonly": READ_ONLY,
    "locked": BUSY,
    "disk I/O error": IO_ERROR,
    "malformed": CORRUPT,
    "database or disk is full": FULL,
    "file is not a database": NOT_A_DATABASE,
}
"""What SQLite writes for a result code. In Python 3.10 an error does not have its code."""


def code_of(error: Exception) -> int:
    """Return the result code of SQLite without its extension; 0 if it is not known."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF
    otherwise = ERROR if isinstance(error, sqlite3.OperationalError) else 0
    return next((code for text, code in TEXTS.items() if text in str(error)), otherwise)


def advise(error: sqlite3.Error | OSError) -> str:
    """Return what an operator can do about an error of the disk or of the file."""
    if code_of(error) == ERROR:
        return "it is damaged or another program changed it: move it away to start with a new one"
    return "this user must have write permission for the file and its folder"


def is_damaged(error: sqlite3.DatabaseError) -> bool:
    """Return whether the file is permanently damaged."""
    return code_of(error) in DAMAGED


def lacks_room(error: sqlite3.Error | OSError) -> bool:
    """Return whether the disk is full or fails temporarily, as opposed to an unusable file."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return code_of(error) in NO_ROOM_IN_SQLITE


def inode_of(path: Path) -> tuple[int, int]:
    """Return device and inode of a file; (0, 0) if it does not exist."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return (0, 0)
    return found.st_dev, found.st_ino


def lock_file(path: Path) -> TextIO:
    """Lock the store for this process. The kernel releases the lock when the process ends."""
    make_private_folder(path.parent, prefix=f"{path.stem}.")
    make_private_file(path.with_suffix(".lock"))
    lock = path.with_suffix(".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StoreError(
            f"another tower uses {path.parent}: use a different --data-dir for each tower"
        ) from None
    return lock
