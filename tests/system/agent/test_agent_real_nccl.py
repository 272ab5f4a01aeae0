"""Threads in the real libnccl.so.2, on a machine without a GPU.

There `ncclGetUniqueId` answers and starts NCCL's bootstrap. `ncclCommInitRank` does not get as far:
it returns an error of CUDA at once. So the waits here are those that the library has before: the
main thread opens its log, a pipe that nobody reads, and the bootstrap waits for ranks.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.native_places import NativePlaces
from agent.procfs import Proc
from tests.system.agent.agent_processes import Victim
from tests.waiting import PATIENCE_S, wait_until
from watchtower.wire.dumps import NativeKind

PROC = Proc()
LIBRARY = "libnccl.so.2"
UNIQUE_ID = (
    "import ctypes; ctypes.CDLL({library!r}).ncclGetUniqueId(ctypes.create_string_buffer(128))"
)


def find_nccl() -> Path | None:
    """Return the library of the package nvidia-nccl-cu12 or -cu13; None without it."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders if (path := Path(folder, "lib", LIBRARY)).exists()]
    return found[0] if found else None


NCCL = find_nccl()

pytestmark = [
    pytest.mark.ptrace,
    pytest.mark.usefixtures("ptrace"),
    pytest.mark.timeout(4 * PATIENCE_S),
    pytest.mark.skipif(NCCL is None, reason="NCCL is not installed (350 MB): make test-nccl"),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A pipe as the log of NCCL. Its `open` waits until the pipe is read."""
    path = tmp_path / "nccl.log"
    os.mkfifo(path)
    return path


@pytest.fixture
def places() -> NativePlaces:
    return NativePlaces(PROC, ChildRunner())


def begin(start: Callable[..., Victim], log: Path) -> Victim:
    victim = start(RANK="0", NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(log))
    victim.begin(UNIQUE_ID.format(library=str(NCCL)))
    return victim


def test_a_main_thread_inside_nccl_waits_for_its_device(start, log, places):
    victim = begin(start, log)
    wait_until(lambda: b"partner" in PROC.try_read(victim.pid, "wchan"), "it opens the pipe")
    place = places.sample([victim.pid], "uid:0")[victim.pid]
    assert (place.kind, place.library) == (NativeKind.DEVICE_WAIT, LIBRARY)
    assert place.libraries[:2] == ("libc.so.6", LIBRARY)
    assert not place.running


def test_the_thread_of_its_bootstrap_waits_in_nccl_and_its_log_is_real(start, log, places, request):
    reading = os.open(log, os.O_RDWR | os.O_NONBLOCK)
    request.addfinalizer(lambda: os.close(reading))
    victim = begin(start, log)
    victim.wait_for("done")
    wait_until(lambda: len(os.listdir(f"/proc/{victim.pid}/task")) > 1, "the bootstrap runs")
    tids = [int(tid) for tid in os.listdir(f"/proc/{victim.pid}/task")]

    def found() -> dict[int, NativeKind]:
        sampled = places.sample_threads({victim.pid: tids}, "uid:0").get(victim.pid, {})
        return {tid: place.kind for tid, place in sampled.items() if place.library == LIBRARY}

    wait_until(lambda: found() != {}, "a thread is in NCCL")
    assert victim.pid not in found()
    assert set(found().values()) == {NativeKind.DEVICE_WAIT}
    assert b"NCCL INFO Bootstrap: Using" in os.read(reading, 1 << 16)
