"""The page of this process: made once, dropped in a forked child, silent if it cannot work."""

from __future__ import annotations

import atexit
import os
import sys
from _thread import RLock
from time import monotonic_ns

from watchtower_heartbeat import layout
from watchtower_heartbeat.launchers import read_identity, read_jax
from watchtower_heartbeat.notice import warn_once
from watchtower_heartbeat.writer import LOCK_PATIENCE_S, PageWriter, blank_image, open_memfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Protocol

    class Ending(Protocol):
        """The page on which the end is recorded."""

        def note_end(self, **fields: int | str) -> None:
            """Record how the process ends. The last call counts."""

        def has_note(self) -> bool:
            """Return whether an end was recorded."""

        def close(self) -> None:
            """Remove the page's file, if it has one."""


PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = 2**64 - 1


def allow_any_tracer() -> None:
    """Allow the same user to trace this process and its forks. Silent if that is refused."""
    try:
        import ctypes  # slow to import, so only on request

        prctl = ctypes.CDLL(None).prctl
        arguments = (
            ctypes.c_int(PR_SET_PTRACER),
            *(ctypes.c_ulong(value) for value in (PR_SET_PTRACER_ANY, 0, 0, 0)),
        )
        prctl(*arguments)
        # Children do not inherit the permission, and an agent reads data loader workers too.
        os.register_at_fork(after_in_child=lambda: prctl(*arguments))
    except Exception:
        return


MAX_DECLARED, MAX_DECLARED_TEXT = 16, 48
"""Values that a program may declare, and characters of each name and value."""

MAX_END = 4096
"""Characters of each end of a message in which lines are chosen."""

ROOM = layout.COLD_TEXTS["exception_message"][1] - 1
"""Bytes of all lines together."""

MAX_LAST = 200
"""Bytes of the last one of several lines."""

STACK_BEGINS = ("Exception raised from ", "frame #")
"""Begin of the lines after which the message has only a stack of C++."""

_watching = False


def watch_end(page: Ending) -> None:
    """Record how this process ends, as far as Python's hooks can detect it. Once per process.

    `sys.excepthook` is called when an exception ends the program; the previous one still is, too.
    `atexit` runs later without the exception, so it reads what the interpreter stored: this also
    works if the program replaced the hook. Other ends (`os._exit`, signals) call no hook; for them
    the agent has the exit status.
    """
    global _watching
    if _watching:
        return
    _watching = True
    previous = sys.excepthook

    def note_and_pass_on(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        _note(page, value)
        previous(kind, value, trace)

    sys.excepthook = note_and_pass_on
    atexit.register(_record_end, page)


def _note(page: Ending, value: BaseException) -> None:
    try:
        page.note_end(**describe(value))
    except Exception:  # the traceback must still be printed
        return


def describe(value: BaseException) -> dict[str, int | str]:
    """Return the page's fields for a process that this exception ends."""
    if isinstance(value, SystemExit):
        return {"ended": layout.ENDED_EXIT, "exit_code": exit_code_of(value.code)}
    return {
        "ended": layout.ENDED_EXCEPTION,
        "exception_type": type_name(type(value)),
        "exception_message": choose_lines(value),
    }


def exit_code_of(code: object) -> int:
    """Return the exit code that the shell gets for `sys.exit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def type_name(kind: type[BaseException]) -> str:
    """Return `ValueError` or `torch.OutOfMemoryError`: without the module for built-in types."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def choose_lines(value: BaseException) -> str:
    """Return the lines of the message that carry its meaning; "" for an empty message.

    The first line, the last one, and as many between them as fit: libraries put the cause into the
    last line, and what they made of it into the first one. NCCL announces its last error, and torch
    adds its own stack behind all that.
    """
    try:
        text = str(value)
    except Exception:  # a __str__ of the program may fail
        return ""
    if len(text) > 2 * MAX_END:
        text = f"{text[:MAX_END]}\n{text[-MAX_END:]}"
    lines = _without_stack([line.strip() for line in text.splitlines() if line.strip()])
    if len(lines) < 2:
        return "".join(lines)
    last = _cut(lines[-1], MAX_LAST)
    kept = [_cut(lines[0], ROOM - MAX_LAST - 1)]
    left = ROOM - _size(kept[0]) - 1 - _size(last)
    for line in lines[1:-1]:
        left -= _size(line) + 1
        if left < 0:
            break
        kept.append(line)
    return "\n".join([*kept, last])


def _without_stack(lines: list[str]) -> list[str]:
    """Return the lines without the stack of C++ that torch adds to a message."""
    for number, line in enumerate(lines):
        if number and line.startswith(STACK_BEGINS):
            return lines[:number]
    return lines


def _size(line: str) -> int:
    return len(line.encode("utf-8", "replace"))


def _cut(line: str, size: int) -> str:
    """Return the beginning of a line, of at most `size` bytes."""
    return line[:size].encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def _record_end(page: Ending) -> None:
    left_behind = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    try:
        if page.has_note():
            pass
        elif isinstance(left_behind, BaseException):
            _note(page, left_behind)
        elif not _is_multiprocessing_child():
            page.note_end(ended=layout.ENDED_FINISHED)
        page.close()
    except Exception:  # the process ends; no error can be handled any more
        return


def _is_multiprocessing_child() -> bool:
    # multiprocessing catches and prints its exceptions, so its end always seems normal.
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


NO_PAGE = memoryview(b"")
"""The value of `hot` before there is a page: the first store fails and makes the page."""


class OwnPage:
    """Owns the mapping, and stores what must be written on it.

    Only `open` makes a page; values are stored until then. Methods may raise: callers in training
    code catch the exceptions.
    """

    def __init__(self, bind: Callable[[memoryview], None]) -> None:
        """`bind` is called with the words for heartbeats whenever they change."""
        self._bind = bind
        self._named: dict[str, int | str] = {}
        self._declared: dict[str, str] = {}
        self._hooked = False
        self._forget()

    def _forget(self) -> None:
        self._lock = RLock()
        self._mapping: mmap.mmap | None = None
        self._writer: PageWriter | None = None
        self._path = ""
        self._phases: dict[object, tuple[str, int]] = {}
        self._losses = 0
        self._noted = False

    def open(self) -> None:
        """Make the page if there is none. If it fails, print that once and ignore all later
        heartbeats.
        """
        if not self._lock.acquire(True, LOCK_PATIENCE_S):
            return
        try:
            if self._writer is None:
                self._make()
        except Exception as error:
            warn_once("page", f"no page: {error}; training continues without heartbeats")
            self._swallow()
        finally:
            self._lock.release()

    def _make(self) -> None:
        if os.environ.get("WATCHTOWER_HEARTBEAT", "").lower() in ("off", "0"):
            self._swallow()
            return
        image = blank_image()
        declared = self._list_declared()
        PageWriter(image).write(**self._identity(), **self._phase(), declared=declared)
        memory, self._path = open_memfd(
            bytes(image), os.environ.get("WATCHTOWER_HEARTBEAT_DIR", "")
        )
        self._mapping, self._writer = memory, PageWriter(memory)
        self._hook()
        self._bind(self._writer.hot)
        _start_records(self)

    def _swallow(self) -> None:
        self._bind(memoryview(bytearray(24)).cast("q"))

    def _hook(self) -> None:
        if self._hooked:
            return
        self._hooked = True
        os.register_at_fork(after_in_child=self.drop)
        watch_end(self)
        if os.environ.get("WATCHTOWER_PTRACE", "").lower() == "any":
            allow_any_tracer()

    def _identity(self) -> dict[str, int | str]:
        given = read_identity(os.environ)
        return {
            "pid": os.getpid(),
            "start_time_ticks": read_start_time(),
            "job": os.environ.get("WATCHTOWER_JOB", ""),
            **given,
            **({} if given["rank"] != layout.UNKNOWN else read_jax(sys.modules)),
            **self._named,
        }

    def _write(self, **fields: int | str) -> None:
        if self._writer is not None:
            self._writer.write(**fields)

    def name(self, **fields: int | str) -> None:
        """Set job, rank, world_size or local_rank, with priority over the environment."""
        self._named.update(fields)
        self._write(**fields)

    def declare(self, values: Mapping[str, object]) -> bool:
        """Note what the ranks must have in common. Of each name the first value stays.

        Return whether all of them have room.
        """
        for name, value in values.items():
            if name.isidentifier() and len(self._declared) < MAX_DECLARED:
                text = " ".join(str(value).split())[:MAX_DECLARED_TEXT]
                self._declared.setdefault(name[:MAX_DECLARED_TEXT], text)
        self._write(declared=self._list_declared())
        return values.keys() <= self._declared.keys()

    def _list_declared(self) -> str:
        lines, room = list[str](), layout.COLD_TEXTS["declared"][1] - 1
        for name, value in self._declared.items():
            line = f"{name}={value}"
            room -= len(line.encode()) + 1
            if room < 0:
                break
            lines.append(line)
        return "\n".join(lines)

    def connect(self, rank: int, world_size: int) -> None:
        """Note what torch's first process group says, unless the rank is known already."""
        if self._identity()["rank"] == layout.UNKNOWN:
            self._write(rank=rank, world_size=world_size)

    def enter_phase(self, token: object, name: str) -> None:
        """Begin a phase. `token` identifies it for `leave_phase`."""
        self._phases[token] = (name, monotonic_ns())
        self._show_phase()

    def leave_phase(self, token: object) -> None:
        """End a phase. Threads may end their phases in any order; the youngest open one is
        shown.
        """
        self._phases.pop(token, None)
        self._show_phase()

    def _show_phase(self) -> None:
        # Read under the lock, so that the last of two threads writes both changes.
        if self._lock.acquire(True, LOCK_PATIENCE_S):
            try:
                self._write(**self._phase())
            finally:
                self._lock.release()

    def _phase(self) -> dict[str, int | str]:
        name, since_ns = (list(self._phases.values()) or [("", 0)])[-1]
        return {"phase": name, "phase_since_ns": since_ns}

    def note_nonfinite_loss(self, step: int) -> None:
        """Count a loss that is NaN or infinite, and record the first and the last step."""
        self._losses += 1
        first = {"first_nonfinite_step": step} if self._losses == 1 else {}
        self._write(nonfinite_losses=self._losses, last_nonfinite_step=step, **first)

    def note_records(self, **fields: int | str) -> None:
        """Record where the collective log of this process is."""
        self._write(**fields)

    def transfer_words(self) -> memoryview | None:
        """Return the words for the counts of transfers; None without a page."""
        return None if self._writer is None else self._writer.transfers

    def note_end(self, **fields: int | str) -> None:
        """Record how the process ends. The last call counts."""
        self._noted = True
        self._write(ended_ns=monotonic_ns(), **fields)

    def has_note(self) -> bool:
        """Return whether an end was recorded."""
        return self._noted

    def close(self) -> None:
        """Remove the page's file, if it has one. The memory stays, because a reader may use it."""
        path, self._path = self._path, ""
        if path:
            os.unlink(path)

    def drop(self) -> None:
        """In a forked child: drop the parent's page, so that only the parent writes it."""
        memory, writer = self._mapping, self._writer
        self._forget()
        self._bind(NO_PAGE)
        try:
            if writer is not None and memory is not None:
                writer.release()
                memory.close()
        except Exception:  # the fork interrupted a heartbeat, which still holds a view
            return


def _start_records(page: OwnPage) -> None:
    """Start the collective log. The page works without it."""
    if os.environ.get("WATCHTOWER_RECORDS", "").lower() in ("off", "0"):
        return
    try:
        from watchtower_heartbeat import records

        records.start(page)
    except Exception as error:
        warn_once("records", f"no collective log: {error}; WATCHTOWER_RECORDS=off suppresses this")


def read_start_time() -> int:
    """Return when this process started, in clock ticks since boot; -1 without /proc."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            # 4711 (python) S 1 ...: the name may contain anything, so count from its end. The name
            # is field 2, the start time is field 22.
            return int(stat.read().rpartition(b")")[2].split()[22 - 3])
    except (OSError, ValueError, IndexError):
        return layout.UNKNOWN
