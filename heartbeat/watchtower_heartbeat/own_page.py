"""The page of this process: made once, dropped in a forked child, silent if it cannot work."""

from __future__ import annotations

import os
from _thread import RLock
from time import monotonic_ns

from watchtower_heartbeat import endings, layout
from watchtower_heartbeat.launchers import read_identity
from watchtower_heartbeat.memfd import open_memfd
from watchtower_heartbeat.notice import warn_once
from watchtower_heartbeat.writer import LOCK_PATIENCE_S, PageWriter, blank_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

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
        PageWriter(image).write(**self._identity(), **self._phase())
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
        endings.watch(self)
        if os.environ.get("WATCHTOWER_PTRACE", "").lower() == "any":
            from watchtower_heartbeat.yama import allow_any_tracer

            allow_any_tracer()

    def _identity(self) -> dict[str, int | str]:
        return {
            "pid": os.getpid(),
            "start_time_ticks": read_start_time(),
            "job": os.environ.get("WATCHTOWER_JOB", ""),
            **read_identity(os.environ),
            **self._named,
        }

    def _write(self, **fields: int | str) -> None:
        if self._writer is not None:
            self._writer.write(**fields)

    def name(self, **fields: int | str) -> None:
        """Set job, rank, world_size or local_rank, with priority over the environment."""
        self._named.update(fields)
        self._write(**fields)

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
