"""Dumper: torch's log of a process's collectives, read through the process's socket.

A C++ thread of the process answers in a millisecond. It answers also while the GIL is held and
while the process is in uninterruptible sleep. A stopped or frozen process is not asked, because it
cannot answer.
"""

from __future__ import annotations

import http.client
import os
import socket
import stat
import struct
import time
from dataclasses import dataclass
from http import HTTPStatus

from agent.dumpers.user_files import open_in_root
from agent.mounts import mount_of
from agent.procfs import Proc, parse_fields
from agent.ranks.pages import is_local_mount
from watchtower.access.tower_connection import bounded_reply, read_body
from watchtower.readers.torch_records import BadRecords, TorchRecords, parse_records
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState

MAX_ANSWER_BYTES = 4 << 20
"""Bytes of an answer. A full ring of 2000 entries has 0.95 MB."""

_CREDENTIALS = struct.Struct("=3i")


class SocketRefused(Exception):
    """The path does not lead to a socket of this process; the message contains the reason."""


class NoAnswer(Exception):
    """The process did not answer as its library does; the message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSocket:
    """The socket on which a process's library answers, according to its page.

    The path is untrusted text: exactly that process must listen on the socket. No wait exceeds the
    deadline: a forked worker may hold a dead rank's socket open and never answer.
    """

    pid: int
    path: str
    """The path as the process itself sees it."""

    def ask(self, proc: Proc, handler: str, deadline: float) -> bytes | None:
        """Return the handler's answer, or None if no handler has that name.

        Raises SocketRefused, NoAnswer, or OSError if the socket cannot be reached. Raises
        TimeoutError (an OSError) if the answer is not complete by `deadline`.
        """
        found = self._open(proc)
        try:
            # By descriptor: this is the socket that was checked, and its path may be of any length.
            connection = _UnixConnection(f"/proc/self/fd/{found}")
            try:
                connection.connect()
                self._check_listener(connection.sock)
                return _ask(connection, handler, deadline)
            finally:
                connection.close()
        finally:
            os.close(found)

    def _open(self, proc: Proc) -> int:
        # After a chroot the process does not see the mount of its root. The numbers are the
        # kernel's.
        mounts = proc.try_read(self.pid, "mountinfo") + Proc().try_read(os.getpid(), "mountinfo")

        def check(folder: int) -> None:
            mount = mount_of(Proc().try_read(os.getpid(), f"fdinfo/{folder}", 4096))
            if not is_local_mount(proc, self.pid, mounts, mount):
                raise SocketRefused("it is on a file system that may hang")

        try:
            found = open_in_root(proc.file(self.pid, "root"), self.path, check)
        except ValueError as error:
            raise SocketRefused(f"its path is {error}") from error
        status = os.fstat(found)
        if stat.S_ISSOCK(status.st_mode) and status.st_uid in _users(proc, self.pid):
            return found
        os.close(found)
        raise SocketRefused("it is not a socket of the process's user")

    def _check_listener(self, connection: socket.socket) -> None:
        """Check that the process itself called listen(2): the kernel names it as the peer."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[0] != self.pid:
            raise SocketRefused("another process listens on it")


def _users(proc: Proc, pid: int) -> set[int]:
    """Return real, effective, saved and file system user id of a process."""
    words = parse_fields(proc.try_read(pid, "status", 8192)).get("Uid", "").split()
    return {int(word) for word in words if word.isdigit()}


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect without waiting. Raises BlockingIOError if the listener's queue is full."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.connect(self._path)


def _ask(connection: _UnixConnection, handler: str, deadline: float) -> bytes | None:
    try:
        connection.sock.settimeout(_seconds_to(deadline))
        connection.request("POST", f"/handler/{handler}", headers={"Connection": "close"})
        connection.response_class = bounded_reply(_seconds_to(deadline), MAX_ANSWER_BYTES)
        with connection.getresponse() as response:
            return None if response.status == HTTPStatus.NOT_FOUND else _read(response)
    except (http.client.IncompleteRead, ConnectionResetError) as error:
        raise NoAnswer("it closed the connection in the middle of its answer") from error
    except http.client.HTTPException as error:
        raise NoAnswer("it does not answer in HTTP") from error


def _read(response: http.client.HTTPResponse) -> bytes:
    if response.status != HTTPStatus.OK:
        raise NoAnswer(f"it answers with status {response.status}")
    if response.length is None:
        raise NoAnswer("its answer has no Content-Length")
    if response.length > MAX_ANSWER_BYTES:
        raise NoAnswer(f"its answer has {response.length} bytes; the limit is {MAX_ANSWER_BYTES}")
    return read_body(response, MAX_ANSWER_BYTES)


def _seconds_to(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no whole answer in time")
    return left


RECORDS_DEADLINE_S = 1.0
"""Seconds for all requests to one process. An answer needs 1 ms, with a full ring 27 ms."""

HANDLERS = (("gloo", "fr_trace_json"), ("nccl", "dump_nccl_trace_json"))
"""Recorder and its handler. Torch has one for each kind of library; without NCCL the second handler
does not exist.
"""

LATE = "no time was left to read the process's collective log"
STOPPED = "the process's collective log cannot be read while the process is stopped"
FROZEN = "the process's collective log cannot be read while the process is frozen"
SILENT = (
    f"the process did not return its collective log within {RECORDS_DEADLINE_S:g} s: the thread "
    "that answers gets no CPU or has ended, or a forked worker of a dead process has the socket"
)
REFUSED = (
    "the agent may not connect to the process's collective-record socket: run the agent with "
    "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; the socket must be open to all users (mode 0666)"
)
MISSING = (
    "the process's collective-record socket does not exist any more: it was removed, or its "
    "folder is hidden from the agent"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The records of a process, by recorder, and why some are missing."""

    records: tuple[tuple[str, TorchRecords], ...] = ()
    failure: str = ""
    """A sentence with what to do; empty if nothing is missing."""


def ask_recorders(
    proc: Proc, pid: int, path: str, kernel: KernelWait, round_deadline: float
) -> Asked:
    """Ask the recorders of one process. This takes at most one second."""
    if kernel.state in (ProcessState.ZOMBIE, ProcessState.GONE):
        return Asked()
    if kernel.state in (ProcessState.STOPPED, ProcessState.TRACED):
        return Asked(failure=STOPPED)
    if kernel.frozen:
        return Asked(failure=FROZEN)
    now = time.monotonic()
    if now >= round_deadline:
        return Asked(failure=LATE)
    deadline = min(now + RECORDS_DEADLINE_S, round_deadline)
    found: list[tuple[str, TorchRecords]] = []
    failure = ""
    for recorder, handler in HANDLERS:
        try:
            answer = RecordSocket(pid=pid, path=path).ask(proc, handler, deadline)
            if answer is not None:
                found.append((recorder, parse_records(answer)))
        except (SocketRefused, NoAnswer, BadRecords, OSError) as error:
            failure = failure or explain(error)
    return Asked(records=tuple(found), failure=failure)


def explain(error: Exception) -> str:
    """Return what failed and what to do about it."""
    if isinstance(error, SocketRefused):
        return (
            f"the collective-record socket that the process names is not used, because {error}: it "
            "must be a socket of the process's own, on a local file system"
        )
    if isinstance(error, BadRecords):
        return (
            f"the process's collective log is not understood ({error}): a newer agent may "
            "support this version of torch"
        )
    if isinstance(error, NoAnswer):
        return f"the collective-record socket of the process is not torch's own: {error}"
    if isinstance(error, TimeoutError | BlockingIOError):
        return SILENT
    if isinstance(error, PermissionError):
        return REFUSED
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return MISSING
    return f"cannot read the process's collective log: {error}"
