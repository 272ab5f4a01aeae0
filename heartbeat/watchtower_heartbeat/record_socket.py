"""Opens torch's own record server on a Unix socket, for an agent on this node.

The server is C++ and does not need Python: it answers while the GIL is held and while the rank
hangs in a collective. Its class is private to torch: if it is missing, there is no socket.

The server must never be destroyed. Its destructor shuts down the listening socket. If a forked
child runs it on exit, the parent's server stops listening too and aborts the parent.
"""

from __future__ import annotations

import _thread
import atexit
import os
import socket
import stat
import sys
import time
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG_LEVEL, ERRORS = "FLAGS_caffe2_log_level", 2
"""Torch's limit for what its C++ code writes to stderr (c10/util/Logging.cpp), and its value for
errors. TORCH_CPP_LOG_LEVEL sets it at the start.
"""

MAX_PATH = 99
"""Bytes. The kernel allows 107, and torch raises for a longer path."""

FOLDER_MODE = 0o711
"""Users can open a known name in the folder. Only the owner can list the names."""

FAMILY_BYTES, NAME_BYTES = 2, 128
"""Bytes of a sockaddr: its family, and all of it (sockaddr_storage, in bits/socket.h of the C
library).
"""

SOCKET_MODE = 0o666
"""A rank's agent often runs as another user. It only gets JSON and can change nothing here."""

SWEEP_MOST = 256
"""Old names checked: more than the ranks of a node, in a few milliseconds."""

SWEEP_AGE_S = 60.0
"""A younger socket may be bound without listening yet."""

SPARE_THREADS = 8
"""Threads that must be possible beyond the server's, because the program itself starts some."""

_path = ""
_bound_to = ""
_descriptor = -1


def open_socket() -> str:
    """Open the server, once per process; return the path of its socket, "" if torch has none.

    Raises OSError if there is no folder for a socket, or if too few threads can be started.
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
    with _warnings_off():
        keep(server_class(bound_to))
    _path, _bound_to, _descriptor = bound_to, bound_to, _find_listener(bound_to)
    atexit.register(_remove)
    # /proc/net/unix shows all users the name at bind, but not a later name.
    os.rename(bound_to, path)
    _path = path
    os.chmod(path, SOCKET_MODE)
    return path


def _find_server() -> Callable[[str], object] | None:
    module = sys.modules.get("torch._C._distributed_c10d")
    return getattr(module, "_WorkerServer", None)


@contextmanager
def _warnings_off() -> Iterator[None]:
    """Have torch's C++ code log errors only: its server writes a warning in each rank when it
    starts. If the number is not where torch has it, the warning is written.
    """
    import ctypes

    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL("libc10.so"), LOG_LEVEL)
    except (OSError, ValueError):
        yield
        return
    before = level.value
    level.value = max(before, ERRORS)
    try:
        yield
    finally:
        level.value = before


def _find_keeper() -> Callable[[object], None] | None:
    """Return a function that keeps an object alive until the process ends, also during shutdown."""
    try:
        import ctypes  # slow to import, but torch has imported it already

        add_reference, wrap = ctypes.pythonapi.Py_IncRef, ctypes.py_object
    except (ImportError, AttributeError):
        return None
    return lambda it: add_reference(wrap(it))


def _check_threads() -> None:
    """Raise OSError if fewer threads can be started than the server needs.

    The server cannot handle this failure: the process would be aborted.
    """
    # One to listen. The pool of its HTTP library has one per core, at least eight.
    wanted = 1 + max(8, (os.cpu_count() or 1) - 1) + SPARE_THREADS
    go_on = _thread.allocate_lock()
    go_on.acquire()
    try:
        for _ in range(wanted):
            _thread.start_new_thread(_wait_for, (go_on,))
    except RuntimeError as error:
        raise OSError(
            f"cannot start {wanted} more threads, and torch's server needs some"
        ) from error
    finally:
        go_on.release()


def _wait_for(lock: _thread.LockType) -> None:
    with lock:
        return


def _make_folder() -> str:
    """Return a folder of this user in which other users cannot list names. Raises OSError."""
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
    # Opened, so that the checked folder is the changed one. A link is refused here.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"another user owns {folder} or can write to it; remove it")
        if stat.S_IMODE(found.st_mode) != FOLDER_MODE:
            os.fchmod(descriptor, FOLDER_MODE)
    finally:
        os.close(descriptor)


def _sweep(folder: str) -> None:
    """Remove the sockets of processes that ended without cleaning up."""
    with os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(SWEEP_MOST), strict=False):
            try:
                if _is_stale(entry):
                    os.unlink(entry.path)
            except OSError:  # another process removes old sockets too
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
        except OSError:  # closed by another thread, or the descriptor of this listing
            continue
    return -1


def _listens(descriptor: int, path: str) -> bool:
    return stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _read_name(descriptor) == path.encode()


def _read_name(descriptor: int) -> bytes:
    """Return the path to which a Unix socket was bound; empty for other sockets.

    This uses the C library, because making a `socket.socket` of a descriptor changes it. With
    `socket.setdefaulttimeout` the descriptor becomes non-blocking for all its users.
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
    except OSError:  # another process has removed it
        return


def drop() -> None:
    """In a forked child: close the parent's socket, which would otherwise outlive the parent."""
    global _path, _bound_to, _descriptor
    bound_to, descriptor = _bound_to, _descriptor
    _path, _bound_to, _descriptor = "", "", -1
    if descriptor >= 0 and _listens(descriptor, bound_to):
        os.close(descriptor)
