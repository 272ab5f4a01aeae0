"""Runs a tool in its own process group, under a deadline, with bounded output.

Nothing here waits without a deadline: a tool that hangs in the kernel cannot be killed, and is left
behind then.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

REAP_S = 0.5
"""A killed child is gone in milliseconds, unless the kernel holds it."""

CHUNK_BYTES = 65536

MAX_LEFT_BEHIND = 4
"""Killed tools that the kernel still holds; with more of them, no further one is started."""


class ToolsHang(OSError):
    """Earlier tools were killed and are not gone: another one would only join them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a tool printed; `code` is None when it had to be killed."""

    code: int | None
    output: bytes
    errors: bytes


class ChildRunner:
    """Starts tools, and kills all that still run when the agent stops."""

    def __init__(self, max_output_bytes: int) -> None:
        self._max_output_bytes = max_output_bytes
        self._running: set[subprocess.Popen[bytes]] = set()
        self._left_behind: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, command: Sequence[str], deadline_s: float) -> Outcome:
        """Run a tool; kill it and its children at the deadline. OSError: it cannot be started."""
        self._check_left_behind()
        deadline = time.monotonic() + deadline_s
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath), "RUST_BACKTRACE": "0"},
            process_group=0,
        )
        with self._lock:
            self._running.add(child)
            if self._stopped:
                _kill(child)
        try:
            output, errors = self._read(child, deadline)
            return Outcome(code=_reap(child, deadline), output=output, errors=errors)
        finally:
            with self._lock:
                self._running.discard(child)
                if child.returncode is None:
                    self._left_behind.add(child)
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()

    def stop(self) -> None:
        """Kill everything that runs, and whatever is started from now on."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                _kill(child)

    def _check_left_behind(self) -> None:
        with self._lock:
            self._left_behind = {each for each in self._left_behind if each.poll() is None}
            if len(self._left_behind) >= MAX_LEFT_BEHIND:
                raise ToolsHang(f"{len(self._left_behind)} earlier ones hang and cannot be killed")

    def _read(self, child: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
        """Read both pipes until they end, the deadline passes or there is too much."""
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
                if len(output) + len(errors) > self._max_output_bytes:
                    _kill(child)
                    break
        return bytes(output), bytes(errors)


def _reap(child: subprocess.Popen[bytes], deadline: float) -> int | None:
    left = deadline - time.monotonic()
    if left > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(min(left, REAP_S))
            return code if code >= 0 else None
    _kill(child)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(REAP_S)
    return None


def _kill(child: subprocess.Popen[bytes]) -> None:
    # Reaped children are left out: their group's number may belong to somebody else by now.
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
