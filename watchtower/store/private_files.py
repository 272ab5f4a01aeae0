"""Creates files and folders that only their owner can access, independent of the umask."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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
