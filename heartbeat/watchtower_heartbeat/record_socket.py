"""Opens torch's own record server on a Unix socket, for an agent on this node.

The server is C++ and needs no Python: it answers while the GIL is held and while the rank hangs in
a collective. Its class is private to torch: where it is gone, there is no socket.

It must never be destroyed. Its destructor shuts the listening socket down; run by a forked child
that exits, that ends the listening of the parent's server, which then aborts its process.
"""

from __future__ import annotations

import _thread
import atexit
import os
import socket
import stat
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PATH = 99
"""Bytes. The kernel takes 107, and a longer path raises in torch."""

FOLDER_MODE = 0o711
"""Who knows a name may pass, nobody else may list the names."""

FAMILY_BYTES, NAME_BYTES = 2, 128
"""Of a sockaddr: its family; all of it (sockaddr_storage, in bits/socket.h of the C library)."""

SOCKET_MODE = 0o666
"""A rank's agent is often another user. What it gets is JSON, and nothing is to be changed here."""

SWEEP_MOST = 256
"""Old names checked: more than a node has ranks, and a few milliseconds."""

SWEEP_AGE_S = 60.0
"""A younger socket may be one that is bound and does not listen yet."""

SPARE_THREADS = 8
"""There must be room for more than the server's: the program itself goes on to start some."""

_path = ""
_bound_to = ""
_descriptor = -1


def open_socket() -> str:
    """Open the server, once per process; return the path of its socket, "" where torch has none.

    Raises OSError when there is no place for a socket, or no room for the server's threads.
    """
    global _path, _bound_to, _descriptor
    server_class = _find_server()
    keep = _find_keeper()
    if server_class is None or keep is None:
        return ""
    _check_threads()
    folder = _make_folder()
    _sweep(folder)
    bound_to, path = (f"{folder}/{os.urandom(16).hex()}" for _ in range(2))
    keep(server_class(bound_to))
    _path, _bound_to, _descriptor = bound_to, bound_to, _find_listener(bound_to)
    atexit.register(_remove)
    # /proc/net/unix shows everybody what a socket was bound to, and not what it is called since.
    os.rename(bound_to, path)
    _path = path
    os.chmod(path, SOCKET_MODE)
    return path


def _find_server() -> Callable[[str], object] | None:
    module = sys.modules.get("torch._C._distributed_c10d")
    return getattr(module, "_WorkerServer", None)


def _find_keeper() -> Callable[[object], None] | None:
    """Return what makes an object live as long as the process, also while Python shuts down."""
    try:
        import ctypes  # slow to import, but torch has done so

        add_reference, wrap = ctypes.pythonapi.Py_IncRef, ctypes.py_object
    except (ImportError, AttributeError):
        return None
    return lambda it: add_reference(wrap(it))


def _check_threads() -> None:
    """Raise OSError unless as many threads can be started as the server will start.

    It starts them where nobody can catch what goes wrong: the process would be aborted.
    """
    # One to listen; the pool of its HTTP library has as many as there are cores, eight or more.
    wanted = 1 + max(8, (os.cpu_count() or 1) - 1) + SPARE_THREADS
    go_on = _thread.allocate_lock()
    go_on.acquire()
    try:
        for _ in range(wanted):
            _thread.start_new_thread(_wait_for, (go_on,))
    except RuntimeError as error:
        raise OSError(f"no room for {wanted} more threads, and its server starts some") from error
    finally:
        go_on.release()


def _wait_for(lock: _thread.LockType) -> None:
    with lock:
        return


def _make_folder() -> str:
    """Return a folder of this user for names that nobody else can list. Raises OSError."""
    name = f"watchtower-{os.geteuid()}"
    problem: OSError = OSError("no folder")
    for parent in (os.environ.get("TMPDIR", ""), "/tmp"):
        folder = os.path.join(os.path.abspath(parent), name) if parent else ""
        if folder and folder.isascii() and folder.isprintable() and len(folder) <= MAX_PATH - 33:
            try:
                _make_or_check(folder)
            except OSError as error:
                problem = error
            else:
                return folder
    raise problem


def _make_or_check(folder: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(folder, FOLDER_MODE)
    # Opened, so that what is checked is what is changed; a link is refused here.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{folder} is not this user's alone; remove it")
        if stat.S_IMODE(found.st_mode) != FOLDER_MODE:
            os.fchmod(descriptor, FOLDER_MODE)
    finally:
        os.close(descriptor)


def _sweep(folder: str) -> None:
    """Remove what processes left behind that could not clean up."""
    with os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(SWEEP_MOST), strict=False):
            try:
                if _is_stale(entry):
                    os.unlink(entry.path)
            except OSError:  # somebody else sweeps, too
                continue


def _is_stale(entry: os.DirEntry[str]) -> bool:
    found = entry.stat(follow_symlinks=False)
    if not stat.S_ISSOCK(found.st_mode) or time.time() - found.st_mtime < SWEEP_AGE_S:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(entry.path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _find_listener(path: str) -> int:
    """Return the server's descriptor, to close it in forked children; -1 if it is not found."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if _listens(int(name), path):
                return int(name)
        except OSError:  # closed by another thread, or the one that listed these
            continue
    return -1


def _listens(descriptor: int, path: str) -> bool:
    return stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _read_name(descriptor) == path.encode()


def _read_name(descriptor: int) -> bytes:
    """Return the path that a Unix socket was bound to, empty for any other.

    The C library is asked, because a `socket.socket` made of a descriptor changes it: with
    `socket.setdefaulttimeout` it stops blocking, and so does whoever else uses the connection.
    """
    import ctypes

    room = ctypes.create_string_buffer(NAME_BYTES)
    length = ctypes.c_uint(NAME_BYTES)
    if ctypes.CDLL(None).getsockname(descriptor, room, ctypes.byref(length)) != 0:
        return b""
    family = int.from_bytes(room.raw[:FAMILY_BYTES], sys.byteorder)
    return room.raw[FAMILY_BYTES:].partition(b"\0")[0] if family == socket.AF_UNIX else b""


def _remove() -> None:
    global _path
    path, _path = _path, ""
    try:
        if path:
            os.unlink(path)
    except OSError:  # swept already
        return


def drop() -> None:
    """In a forked child: let go of the parent's socket, which would outlive the parent."""
    global _path, _bound_to, _descriptor
    bound_to, descriptor = _bound_to, _descriptor
    _path, _bound_to, _descriptor = "", "", -1
    if descriptor >= 0 and _listens(descriptor, bound_to):
        os.close(descriptor)
