"""The key that signs the cookies of sessions. It is in a file, so that a restart of the tower ends
no session."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path

log = logging.getLogger("watchtower.access")

KEY_BYTES = 32
"""Random bytes of the key, as long as the signatures that it makes."""

FILE = "session-key"


def make_key() -> bytes:
    """Return a new random key."""
    return secrets.token_bytes(KEY_BYTES)


def keep_key(folder: Path) -> bytes:
    """Return the key in a folder. Make it if there is none, or none that only its owner can read.

    If it cannot be written, the key is new with every start.
    """
    path = folder / FILE
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("%s is replaced, and all sessions of web pages end: %s", path, error)
    key = make_key()
    try:
        _write(path, key)
    except OSError as error:
        log.warning(
            "a restart will end all sessions of web pages: cannot write %s: %s", path, error
        )
    return key


def _read(path: Path) -> bytes:
    """Return the key in a file. Raises OSError; ValueError if it is not usable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        key = file.read(KEY_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"it does not have {KEY_BYTES} bytes")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ValueError("other users can access it")
    return key


def _write(path: Path, key: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
