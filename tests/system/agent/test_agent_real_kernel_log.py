"""The kernel log of this machine: a forged line, and a real crash."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.collectors.kernel_log import KernelLog
from tests.waiting import wait_until
from watchtower.wire.observations import Observation

KMSG = Path("/dev/kmsg")

CRASHES = "void watchtower_crash(void) { *(volatile int *)0 = 1; }"

CALL = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).watchtower_crash()"


@pytest.fixture
def log() -> KernelLog:
    if not os.access(KMSG, os.R_OK):
        pytest.skip("/dev/kmsg cannot be read on this machine")
    log = KernelLog()
    list(log.collect(time.monotonic()))
    assert log.can_read
    return log


def collect(log: KernelLog) -> list[Observation]:
    return list(log.collect(time.monotonic()))


def test_a_program_cannot_forge_an_error_of_a_gpu(log: KernelLog):
    if not os.access(KMSG, os.W_OK):
        pytest.skip("/dev/kmsg cannot be written: this needs root")
    line = f"NVRM: Xid (PCI:0000:3b:00): 79, pid={os.getpid()}, GPU has fallen off the bus."
    reader = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)

    def is_written() -> bool:
        # The kernel drops some lines of programs (kernel.printk_devkmsg), so it is repeated.
        with KMSG.open("wb", buffering=0) as device:
            device.write(b"<0>" + line.encode())  # the kernel makes facility 1 of it
        return _contains(reader, line)

    try:
        wait_until(is_written, "the line is in the kernel log", patience_s=30)
    finally:
        os.close(reader)
    assert not [each for each in collect(log) if f"pid={os.getpid()}" in each.text]


def test_a_crash_in_a_library_of_nccl_is_reported_with_its_process(log: KernelLog, tmp_path: Path):
    flag = Path("/proc/sys/debug/exception-trace")
    if not flag.exists() or flag.read_text().strip() != "1":
        pytest.skip("this kernel does not log crashes of programs (debug.exception-trace)")
    library = tmp_path / "libnccl.so.2"
    source = tmp_path / "crash.c"
    source.write_text(CRASHES)
    built = subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", library, source], capture_output=True, check=False
    )
    if built.returncode:
        pytest.skip("gcc is not installed")
    # Crashes are logged at a limited rate, for all programs together.
    pids: set[int] = set()

    def is_reported() -> bool:
        with subprocess.Popen([sys.executable, "-c", CALL, library]) as crashing:
            pids.add(crashing.pid)
        return any(each.pid in pids and "libnccl.so.2" in each.text for each in collect(log))

    wait_until(is_reported, "the kernel reports the crash", patience_s=30)
    (found, *_) = (each for each in collect(log) if each.pid in pids)
    assert found.family == "segfault"
    assert found.age_s < 60


def _contains(reader: int, line: str) -> bool:
    while True:
        try:
            if line.encode() in os.read(reader, 8192):
                return True
        except BlockingIOError:
            return False
        except BrokenPipeError:
            continue
