"""The file of the store: private, locked, and whether it is damaged or has no room."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
from pathlib import Path
from typing import TextIO

from watchtower.store.protocol import StoreError

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private_folder(folder: Path, prefix: str) -> None:
    """Create a folder, and remove the access of others to it and its files with `prefix`.

    A folder that existed before keeps its mode if it contains other files: it may be a shared
    folder such as /tmp. Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)
        folder.chmod(FOLDER_MODE)  # the umask may have removed the owner's rights
    has_other_files = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix):
                has_other_files = True
            elif entry.is_file(follow_symlinks=False):
                _close(entry.path, entry.stat(follow_symlinks=False), FILE_MODE)
    if not has_other_files:
        _close(str(folder), folder.stat(), FOLDER_MODE)


def make_private_file(path: Path) -> None:
    """Create an empty file unless it exists. SQLite gives its log and its index the same mode.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and status.st_mode & 0o777 != FILE_MODE:
            os.fchmod(descriptor, FILE_MODE)
    finally:
        os.close(descriptor)


def _close(path: str, status: os.stat_result, mode: int) -> None:
    if status.st_uid == os.geteuid() and status.st_mode & 0o777 != mode:
        os.chmod(path, mode)


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
