"""The child process that reads the GPUs: its start, its lines, and its end.

The agent never calls NVML itself. It waits neither for the child to print nor for it to end: a
call in the driver may last for ever, and a process in such a call cannot be killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec

from agent.children import child_command
from agent.collectors.gpu.program import NAME
from agent.procfs import parse_stat

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 256 * 1024
"""A longer line is not from our program. 32 GPUs have some 40 KB."""

READ_BYTES = 64 * 1024
READS = 16
"""Most reads at one interval."""

SILENT_S = 15.0
"""A child that prints nothing for so long does not run: its threads are separate from the calls."""

DRIVER_FILES = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
"""On a node with the driver, at least one of these exists. Without them no child is started."""

ABSENT_RETRY_S = 60.0
"""Seconds until the next try on a node without a driver, without GPUs or without a library."""

FIRST_RETRY_S, LAST_RETRY_S = 5.0, 600.0
"""Seconds until a child that ended is started again. Each further wait is twice as long."""

STOP_S = 0.5
"""Seconds that a child has to end. One that is in a call of the driver may never end."""

NO_GPUS = "no_gpus"
ABSENT = ("no_driver", NO_GPUS)
"""States in which there is nothing to read. They are ordinary on a node without GPUs."""

NOT_INSTALLED = {
    "no_library": "the driver is there, and libnvidia-ml.so.1 is not: install it, or give the "
    "agent's container the driver capability `utility`",
    "no_binding": "the driver is there, and the package nvidia-ml-py is not: install it into the "
    "agent's environment",
}
"""States of a node with the driver in which a part is missing, and what to do."""


class GpuReading(msgspec.Struct):
    """One GPU, as the child prints it."""

    index: int
    names: dict[str, str] = {}
    """`pci`, `uuid`, `model`."""
    values: dict[str, float] = {}
    processes: list[int] = []
    state: str = ""
    """"lost", "reset_required" or empty."""
    age_s: float = -1.0
    """Seconds since it was read; negative if it never was."""
    call: str = ""
    """The call of NVML that has not returned; empty if none."""
    call_s: float = 0.0


class NodeReading(msgspec.Struct):
    """One line of the child."""

    state: str = ""
    driver: str = ""
    call: str = ""
    call_s: float = 0.0
    gpus: list[GpuReading] = []
    xids: list[tuple[str, int, float]] = []
    """PCI address, code and age in seconds of Xid errors."""
    xids_error: str = ""
    """Why Xid errors are not read; empty if they are, or if the driver has no events."""
    durations: dict[str, list[float]] = {}
    """By kind of call: the counts of buckets, and the sum of seconds."""


_DECODER = msgspec.json.Decoder(NodeReading)


class NvmlProcess:
    """One child at a time."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._child: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._start_at = self._heard_at = 0.0
        self._failures = 0
        self.state = ""
        """The last state that a child ended with."""

    def read(self, now: float) -> NodeReading | None:
        """Return the newest line since the last call, if any. Starts the child when it is due."""
        if self._child is None:
            if now >= self._start_at:
                self._start(now)
            return None
        newest = None
        for line in self._lines(self._child, now):
            try:
                newest = _DECODER.decode(line)
            except msgspec.MsgspecError as error:
                log.warning("a line of the GPU reader is not valid: %s", error)
        if newest is not None:
            self.state = newest.state
        if self._child.poll() is not None:
            self._note_end(now)
        return newest

    def is_silent(self, now: float) -> bool:
        """Return whether a child runs that has not printed for long."""
        return self._child is not None and now - self._heard_at > SILENT_S

    def stop(self) -> None:
        """Ask the child to end. It is not killed: it may be inside the driver."""
        if self._child is not None:
            _close(self._child)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_S)
        self._child = None
        self._start_at = float("inf")

    def _start(self, now: float) -> None:
        if not any(os.path.exists(os.path.join(self._root, each)) for each in DRIVER_FILES):
            self.state, self._start_at = "no_driver", now + ABSENT_RETRY_S
            return
        if stuck := find_abandoned("/proc"):
            self.state, self._start_at = f"stuck: pid {stuck}", now + LAST_RETRY_S
            return
        binding = find_spec("pynvml")
        if binding is None or binding.origin is None:
            self.state, self._start_at = "no_binding", now + ABSENT_RETRY_S
            return
        keep = {
            name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        folder = str(Path(binding.origin).parent)
        try:
            self._child = subprocess.Popen(
                child_command("agent.collectors.gpu.program", str(os.getpid()), folders=[folder]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=keep,
            )
        except OSError as error:
            log.warning("the GPU reader cannot be started: %s", error)
            self._plan_retry(now)
            return
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        self._heard_at, self._rest = now, b""

    def _lines(self, child: subprocess.Popen[bytes], now: float) -> Iterator[bytes]:
        assert child.stdout is not None
        for _ in range(READS):
            try:
                part = os.read(child.stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                return
            if not part:
                return
            self._heard_at = now
            *lines, self._rest = (self._rest + part).split(b"\n")
            self._rest = self._rest[:MAX_LINE_BYTES]
            yield from lines

    def _note_end(self, now: float) -> None:
        assert self._child is not None
        _close(self._child)
        self._child = None
        if self.state in ABSENT or self.state in NOT_INSTALLED:
            self._start_at = now + ABSENT_RETRY_S
        else:
            self._plan_retry(now)

    def _plan_retry(self, now: float) -> None:
        self._start_at = now + min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures, 16))
        self._failures += 1


def find_abandoned(proc: str) -> int | None:
    """Return the pid of a GPU reader of an earlier agent that has not ended: it is in a call.

    Its parent is another process than the one that started it. A second reader would be stuck in
    the same call, and neither can be killed. A reader that was told to end is a zombie until its
    last thread returns from the driver. Then its name is all that is left of its command.
    """
    for name in os.listdir(proc):
        try:
            if not name.isdecimal() or os.stat(f"{proc}/{name}").st_uid != os.geteuid():
                continue
            stat = parse_stat(Path(f"{proc}/{name}/stat").read_bytes())
            if stat is None or not stat.comm.startswith(NAME):
                continue
            if stat.state == "Z" and len(os.listdir(f"{proc}/{name}/task")) < 2:
                continue  # it has ended, and only its parent has not noticed
        except OSError:
            continue
        if stat.comm.removeprefix(NAME) != str(stat.ppid):
            return int(name)
    return None


def _close(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()
