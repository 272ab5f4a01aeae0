"""The page of this process: made once, dropped in a forked child, silent when it cannot work."""

from __future__ import annotations

import os
from _thread import RLock
from time import monotonic_ns

from watchtower_heartbeat import endings, layout
from watchtower_heartbeat.launchers import read_identity
from watchtower_heartbeat.memfd import open_memfd
from watchtower_heartbeat.notice import say_once
from watchtower_heartbeat.writer import LOCK_PATIENCE_S, PageWriter, blank_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

NO_PAGE = memoryview(b"")
"""What beats are bound to before there is a page: the first store fails and asks for one."""


class OwnPage:
    """Owns the mapping, and remembers what has to be said on it.

    Only `open` makes a page; the notes are kept until then. Methods may raise: who calls them from
    training code guards them.
    """

    def __init__(self, bind: Callable[[memoryview], None]) -> None:
        """`bind` is handed the words that beats go to, whenever they change."""
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
        """Make the page unless there is one, or say once why not and swallow all later beats."""
        if not self._lock.acquire(True, LOCK_PATIENCE_S):
            return
        try:
            if self._writer is None:
                self._make()
        except Exception as error:
            say_once("page", f"no page: {error}; training goes on without heartbeats")
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
        """Say job, rank, world_size or local_rank, in place of what the environment says."""
        self._named.update(fields)
        self._write(**fields)

    def enter_phase(self, token: object, name: str) -> None:
        """Begin a phase; `token` is what ends it."""
        self._phases[token] = (name, monotonic_ns())
        self._show_phase()

    def leave_phase(self, token: object) -> None:
        """End that phase. Threads may end theirs in any order: the youngest left is shown."""
        self._phases.pop(token, None)
        self._show_phase()

    def _show_phase(self) -> None:
        # Read under the lock: of two threads the last to write then knows both changes.
        if self._lock.acquire(True, LOCK_PATIENCE_S):
            try:
                self._write(**self._phase())
            finally:
                self._lock.release()

    def _phase(self) -> dict[str, int | str]:
        name, since_ns = (list(self._phases.values()) or [("", 0)])[-1]
        return {"phase": name, "phase_since_ns": since_ns}

    def note_nonfinite_loss(self, step: int) -> None:
        """Count a loss that is NaN or infinite, and remember the first and the last step."""
        self._losses += 1
        first = {"first_nonfinite_step": step} if self._losses == 1 else {}
        self._write(nonfinite_losses=self._losses, last_nonfinite_step=step, **first)

    def note_records(self, **fields: int | str) -> None:
        """Say where the collective records of this process are."""
        self._write(**fields)

    def transfer_words(self) -> memoryview | None:
        """Return the words that transfers are counted in; None without a page."""
        return None if self._writer is None else self._writer.transfers

    def note_end(self, **fields: int | str) -> None:
        """Write down how the process ends; the last note stays."""
        self._noted = True
        self._write(ended_ns=monotonic_ns(), **fields)

    def has_note(self) -> bool:
        """Say whether an end was noted already."""
        return self._noted

    def close(self) -> None:
        """Remove the page's file, if it is one. The memory stays: a reader may hold it."""
        path, self._path = self._path, ""
        if path:
            os.unlink(path)

    def drop(self) -> None:
        """In a forked child: let go of the parent's page, so that only the parent writes it."""
        memory, writer = self._mapping, self._writer
        self._forget()
        self._bind(NO_PAGE)
        try:
            if writer is not None and memory is not None:
                writer.release()
                memory.close()
        except Exception:  # somebody interrupted in the middle of a beat still holds a view
            return


def _start_records(page: OwnPage) -> None:
    """Let an agent see the collectives, too; a page without them is still a page."""
    if os.environ.get("WATCHTOWER_RECORDS", "").lower() in ("off", "0"):
        return
    try:
        from watchtower_heartbeat import records

        records.start(page)
    except Exception as error:
        say_once("records", f"no collective records: {error}; WATCHTOWER_RECORDS=off is silent")


def read_start_time() -> int:
    """Return when this process started, in clock ticks since boot; -1 where /proc is missing."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            # 4711 (python) S 1 ...: the name may hold anything, so count from behind it. It is
            # field 2, and the start time is field 22.
            return int(stat.read().rpartition(b")")[2].split()[22 - 3])
    except (OSError, ValueError, IndexError):
        return layout.UNKNOWN
