"""Children of the agent: how they are started, limited, and abandoned if they hang.

A child works on a process that may be hostile: py-spy copies as much memory as the headers of a
forged program name. So each has its own process group, a deadline, and bounded output and memory.
One that hangs in the kernel cannot be killed, and is abandoned.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from watchtower.service.sharing import has_share

log = logging.getLogger(__name__)

MAX_TOOL_MEMORY_BYTES = 128 << 20
"""Private memory of one tool. py-spy needs 3 MB, or 17 MB for 300 threads of 100 frames (it cannot
read more before its deadline). The child that reads source needs 9 MB.
"""

OOM_SCORE = 1000
"""oom_score_adj: if the node or the control group has no memory left, the tool is killed first."""


def confine(pid: int, memory_bytes: int = MAX_TOOL_MEMORY_BYTES) -> None:
    """Limit a child that was just started and not reaped yet.

    Memory that it has allocated before counts too. If a limit cannot be set, that is logged once
    and the tool runs without it.
    """
    try:
        # Private memory: the heap, but not mapped files.
        resource.prlimit(pid, resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        # A tool that aborts at that limit leaves no core file.
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(OOM_SCORE))
    except ProcessLookupError:
        pass  # it has ended already
    except OSError as error:
        _warn_once(str(error))


@cache
def _warn_once(error: str) -> None:
    log.warning("cannot limit the memory of tools: %s", error)


PACKAGES = str(Path(__file__).parents[1])
_START = (
    "import importlib, sys; sys.path += sys.argv.pop(1).split('\\n'); "
    "importlib.import_module(sys.argv.pop(1)).main()"
)


def child_command(module: str, *arguments: str, folders: Sequence[str] = ()) -> list[str]:
    """Return the command that calls `main` of a module. It finds the arguments in `sys.argv`.

    Only the standard library comes before our own packages and these folders, and no file of a user
    is imported.
    """
    path = "\n".join((*folders, PACKAGES))
    return [sys.executable, "-I", "-S", "-c", _START, path, module, *arguments]


REAP_S = 0.5
"""Seconds to wait for a killed child. It ends in milliseconds, unless it hangs in the kernel."""

CHUNK_BYTES = 65536
"""Bytes of one read: a pipe holds as many by default."""

MAX_LEFT_BEHIND = 8
"""Killed children of one kind that still hang in the kernel."""


class ToolsHang(OSError):
    """Too many killed children on an owner's processes still hang, so no further one starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A kind of child. However many of one kind hang, another kind still starts."""

    name: str = ""
    max_output_bytes: int = 1 << 20
    memory_bytes: int = MAX_TOOL_MEMORY_BYTES
    """Private memory that it may have."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Tool, Generic[T]):
    """A module of ours whose `main` prints a line of JSON for each answer. `name` is the module."""

    answers: msgspec.json.Decoder[T]
    purpose: str
    """What it cannot do if it cannot be started, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Generic[T]):
    """What a program answered until it ended."""

    found: tuple[T, ...] = ()
    is_late: bool = False
    """It was killed at its deadline."""


class Abandoned(Generic[T]):
    """What hangs and cannot be ended. Owners share the places: an owner that has used its share may
    start nothing more; other owners may. Thread-safe.
    """

    def __init__(self, places: int, is_alive: Callable[[T], bool]) -> None:
        self._places, self._is_alive = places, is_alive
        self._owners: dict[T, str] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how much hung when this was last asked."""
        return len(self._owners)

    def add(self, each: T, owner: str) -> None:
        """Count something that hangs until it ends."""
        with self._lock:
            self._owners[each] = owner

    def has_room(self, owner: str) -> bool:
        """Return whether an owner may start something that might hang."""
        with self._lock:
            self._owners = {each: of for each, of in self._owners.items() if self._is_alive(each)}
            return has_share(Counter(self._owners.values()), owner, self._places)


ANY_TOOL = Tool()


class Ended(Enum):
    """Why a tool did not end by itself."""

    DEADLINE = "deadline"
    OUTPUT = "output"
    """It printed too much."""
    MEMORY = "memory"
    """It needed more memory than its limit."""
    SIGNAL = "signal"
    """A signal of another process or of the kernel ended it, for example without free memory."""


_NO_MEMORY = (b"memory allocation of", b"MemoryError")
"""The last error message of a Rust and of a Python program at the memory limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The output of a tool. If the agent or a signal ended it, `code` is None and `ended` is the
    reason.
    """

    code: int | None
    output: bytes
    errors: bytes
    ended: Ended | None = None


class ChildRunner:
    """Starts children, and kills all that still run when the agent stops."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._abandoned: dict[str, Abandoned[subprocess.Popen[bytes]]] = {}
        """By name of the tool."""
        self._lock = threading.Lock()
        self._stopped = False

    def ask(
        self, program: Program[T], arguments: Iterable[str], deadline_s: float, owner: str = ""
    ) -> Answers[T]:
        """Return what a program of ours answers in time about processes of this owner.

        Only whole lines count, up to the first one that is not valid. Trouble is logged.
        """
        try:
            outcome = self.run(child_command(program.name, *arguments), deadline_s, owner, program)
        except OSError as error:
            log.warning("%s: %s", program.purpose, error)
            return Answers()
        found: list[T] = []
        trouble = outcome.errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        for line in outcome.output.split(b"\n")[:-1]:
            try:
                found.append(program.answers.decode(line))
            except msgspec.MsgspecError as error:
                trouble = trouble or str(error)
                break
        if trouble:
            log.warning("%s: %s", program.purpose, trouble)
        return Answers(found=tuple(found), is_late=outcome.ended is Ended.DEADLINE)

    def run(
        self, command: Sequence[str], deadline_s: float, owner: str = "", tool: Tool = ANY_TOOL
    ) -> Outcome:
        """Run a tool on a process of this owner; kill the tool and its children at the deadline.

        Raises OSError if it cannot be started.
        """
        abandoned = self._find_abandoned(tool)
        if not abandoned.has_room(owner):
            raise ToolsHang(f"{len(abandoned)} earlier tools hang and cannot be killed")
        deadline = time.monotonic() + deadline_s
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath), "RUST_BACKTRACE": "0"},
            start_new_session=True,
        )
        confine(child.pid, tool.memory_bytes)
        with self._lock:
            self._running.add(child)
            if self._stopped:
                _kill(child)
        try:
            output, errors, too_much = _read(child, deadline, tool.max_output_bytes)
            code, ended = _reap(child, deadline)
            if too_much:
                code, ended = None, Ended.OUTPUT
            elif code != 0 and any(words in errors for words in _NO_MEMORY):
                code, ended = None, Ended.MEMORY
            return Outcome(code=code, output=output, errors=errors, ended=ended)
        finally:
            with self._lock:
                self._running.discard(child)
            if child.returncode is None:
                abandoned.add(child, owner)
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()

    def stop(self) -> None:
        """Kill all running tools, and every tool that is started from now on."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                _kill(child)

    def _find_abandoned(self, tool: Tool) -> Abandoned[subprocess.Popen[bytes]]:
        with self._lock:
            return self._abandoned.setdefault(
                tool.name, Abandoned(MAX_LEFT_BEHIND, lambda child: child.poll() is None)
            )


def _read(
    child: subprocess.Popen[bytes], deadline: float, max_bytes: int
) -> tuple[bytes, bytes, bool]:
    """Read both pipes until they end, the deadline passes or the output is too long."""
    assert child.stdout is not None
    assert child.stderr is not None
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, output)
        selector.register(child.stderr, selectors.EVENT_READ, errors)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                part = os.read(key.fd, CHUNK_BYTES)
                key.data.extend(part)
                if not part:
                    selector.unregister(key.fileobj)
            if len(output) + len(errors) > max_bytes:
                _kill(child)
                return bytes(output), bytes(errors), True
    return bytes(output), bytes(errors), False


def _reap(child: subprocess.Popen[bytes], deadline: float) -> tuple[int | None, Ended | None]:
    left = deadline - time.monotonic()
    if left > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(min(left, REAP_S))
            return (code, None) if code >= 0 else (None, Ended.SIGNAL)
    _kill(child)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(REAP_S)
    return None, Ended.DEADLINE


def _kill(child: subprocess.Popen[bytes]) -> None:
    # Reaped children are skipped: the number of their group may belong to another process by now.
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


READY_S = 3.0
"""Seconds to wait for its start. It starts in 20 ms."""

_WAIT = "print(flush=True); input()"
"""It ends with its parent, because the parent's end of the pipe is closed then."""


@contextlib.contextmanager
def quiet_child() -> Iterator[int | None]:
    """Start it and yield its pid; None if it is not ready in time. Raises OSError if it cannot
    start.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        confine(child.pid)
        ready, _, _ = select.select([child.stdout], [], [], READY_S)
        yield child.pid if ready else None
    finally:
        child.kill()
        child.stdin.close()
        child.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(READY_S)
