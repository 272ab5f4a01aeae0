"""Where threads of real processes are in native code, for an agent with the rights of its unit.

Every process has executed other things before in the same thread: their words are on its stack.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.dumpers.perf_clock import find_sampling_error
from tests.system.agent.agent_processes import PROGRAMS, Victim
from tests.system.e2e.other_users import (
    AGENT_USER,
    JOB_USER,
    become,
    make_shared_python,
    needs_other_users,
    unit_capabilities,
)
from tests.waiting import PATIENCE_S
from watchtower.drills.compiling import compile_library, find_compiler

ROUNDS = 40
NOT_KNOWN = "unknown"
"""A thread that runs may get too little CPU for enough samples, where other tests run as well."""

BEFORE = """
import ctypes, json, re, threading, time
def fall(depth): return fall(depth - 1) if depth else sorted(json.loads('[3, 1, 2]'), key=str)
fall(600)
re.match('(a+)+$', 'a' * 18 + 'b')
compile('sum(x * x for x in range(9))\\n' * 2000, 'made', 'exec')
thread = threading.Thread(target=time.sleep, args=(0.01,))
thread.start(); thread.join()
"""
BACKWARD = """
import torch
layer = torch.nn.Linear(256, 256)
for _ in range(3): layer(torch.ones(64, 256)).square().sum().backward()
"""
CALL = "ctypes.CDLL({library!r}).{function}()"
PLACES = {
    "a wait for the device that spins": ("device_wait", "libcuda.so.1", "spin"),
    "one that yields": ("device_wait", "libcuda.so.1", "do_yield"),
    "one that sleeps": ("device_wait", "libcuda.so.1", "sleep_in_condition"),
    "work in a library": ("native", "_tokens.so", "compute"),
    "a library that spins on the clock": ("native", "_poller.so", "spin"),
    "a library that sleeps": ("native", "_queue.so", "sleep_in_condition"),
}
PYTHON = {
    "a loop": "while True: pass",
    "a regular expression": "re.match('(a+)+$', 'a' * 60 + 'b')",
    "deep recursion": "while True: fall(900)",
    "a lock taken twice": "k = threading.Lock(); k.acquire(); k.acquire()",
    "sleep": "time.sleep(600)",
}

pytestmark = [
    needs_other_users,
    pytest.mark.timeout(4 * PATIENCE_S),
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"),
    pytest.mark.skipif(bool(find_sampling_error()), reason=f"perf: {find_sampling_error()}"),
]


@pytest.fixture(scope="module")
def shared_folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="watchtower-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def shared_python(shared_folder: Path) -> Path:
    """A Python with our packages that every user can run."""
    python = make_shared_python(shared_folder)
    if python is None:
        pytest.skip("other users can run no Python of this version, or not read these sources")
    return python


@pytest.fixture
def victim(shared_python: Path) -> Iterator[Victim]:
    """A process of another user than the agent's."""
    command = [*become(JOB_USER, []), str(shared_python), "-I", str(PROGRAMS / "obeys.py")]
    made = Victim({}, command)
    yield made
    made.close()


def begin(victim: Victim, before: str, code: str) -> None:
    """Have it execute what ends, and then what never ends."""
    victim.begin(f"exec({before!r}); print('begun', flush=True); exec({code!r})")
    victim.wait_for("begun")


def found(victim: Victim, python: Path) -> dict[str, dict[str, int]]:
    """Finds of an agent's child in many rounds: kinds of places with libraries, and failures."""
    command = [*become(AGENT_USER, unit_capabilities()), str(python), "-I"]
    program = str(PROGRAMS / "sample_native.py")
    command += [program, str(victim.pid), str(ROUNDS), str(PATIENCE_S / 2)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, cwd="/"
    )
    return json.loads(done.stdout)


def check_place(name: str, before: str, victim: Victim, folder: Path, python: Path) -> None:
    kind, library, function = PLACES[name]
    path = folder / library
    if not path.exists():
        compile_library(PROGRAMS / "waits.c", path, "-lpthread")
        path.chmod(0o755)
    begin(victim, before, CALL.format(library=str(path), function=function))
    seen = found(victim, python)
    assert seen["kinds"].keys() - {NOT_KNOWN} == {f"{kind} {library}"}
    assert seen["failures"] == {}


@pytest.mark.parametrize("name", PLACES)
def test_the_libraries_of_a_thread_show_what_it_does(name, victim, shared_folder, shared_python):
    check_place(name, BEFORE, victim, shared_folder, shared_python)


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("name", list(PLACES)[:3])
def test_they_show_it_also_after_backward(name, victim, shared_folder, shared_python):
    check_place(name, BEFORE + BACKWARD, victim, shared_folder, shared_python)


@pytest.mark.parametrize("name", PYTHON)
def test_what_python_does_itself_is_python(name, victim, shared_python):
    begin(victim, BEFORE, PYTHON[name])
    seen = found(victim, shared_python)
    assert {each.partition(" ")[0] for each in seen["kinds"]} - {NOT_KNOWN} == {"python"}
    assert seen["failures"] == {}
