"""The real kernel log of this machine: lines of the kernel count, lines of processes do not."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.kernel_log import KernelLog
from tests.agent.agent_scene import wait_until
from watchtower.drills.compiling import compile_library, find_compiler
from watchtower.wire.observations import Observation

KMSG = Path("/dev/kmsg")
TRACES = Path("/proc/sys/debug/exception-trace")

pytestmark = pytest.mark.skipif(
    not os.access(KMSG, os.R_OK | os.W_OK), reason="the kernel log needs root"
)


@pytest.fixture
def log() -> Iterator[KernelLog]:
    made = KernelLog()
    collect(made)
    if not made.can_read:
        pytest.skip(made.gap())
    yield made
    made.stop()


def collect(log: KernelLog) -> list[Observation]:
    return list(log.collect(time.monotonic()))


def read_new(reader: int) -> str:
    """The records since the last call."""
    found = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            found += os.read(reader, 8192)
    return found.decode("utf-8", "replace")


@pytest.mark.parametrize("prefix", ["", "<3>", "<0>"])
def test_a_process_that_writes_the_line_of_an_error_forges_nothing(log: KernelLog, prefix: str):
    """The kernel gives its records another facility, whatever it asks for."""
    mark = uuid.uuid4().hex
    line = f"{prefix}NVRM: Xid (PCI:0000:3b:00): 79, pid={os.getpid()}, name={mark}, GPU has fallen"
    reader = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(reader, 0, os.SEEK_END)
        KMSG.write_text(f"{line}\n")  # without its end, a record waits for the next one
        wait_until(lambda: mark in read_new(reader), "the line is in the log")
    finally:
        os.close(reader)
    assert not any(mark in each.text for each in collect(log))


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
@pytest.mark.skipif(
    platform.machine() != "x86_64" or not TRACES.exists() or TRACES.read_text().strip() == "0",
    reason="this kernel does not log segmentation faults",
)
def test_a_crash_in_a_library_is_found_with_the_name_of_the_library(log: KernelLog, tmp_path: Path):
    source = tmp_path / "crash.c"
    source.write_text("int crash(void) { return *(volatile int *)0; }\n")
    library = tmp_path / "libnccl.so.2"
    compile_library(source, library)
    program = f"import ctypes; ctypes.CDLL({str(library)!r}).crash()"
    with subprocess.Popen([sys.executable, "-c", program]) as crashed:
        crashed.wait()

    def find() -> Observation | None:
        return next((each for each in collect(log) if each.pid == crashed.pid), None)

    found = wait_until(find, "the crash is in the log")
    assert (found.name, found.subject) == ("segfault", f"pid:{crashed.pid}")
    assert "libnccl.so.2" in found.text
    assert found.age_s < 60
