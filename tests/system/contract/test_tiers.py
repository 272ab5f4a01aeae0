"""A test outside of tests/system that starts a process fails, however it starts it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

WAYS = {
    "subprocess": "subprocess.run(['true'])",
    "system": "os.system('true')",
    "posix_spawn": "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "fork": "pid = os.fork() or os._exit(0); os.waitpid(pid, 0)",
    "spawn": "p = multiprocessing.get_context('spawn').Process(target=print); p.start(); p.join()",
    "spawn_and_leave": "keep.append(spawnv_passfds(b'/bin/sleep', ['sleep', '20'], ()))",
    "thread": "t = threading.Thread(target=os.system, args=('true',)); t.start(); t.join()",
}
"""Ways to start a process; a test for each must fail."""

FILE = """
import multiprocessing, os, signal, subprocess, threading, pytest
from multiprocessing.util import spawnv_passfds
keep = []

@pytest.fixture(scope="module", autouse=True)
def ends():
    yield
    for pid in keep:
        os.kill(pid, signal.SIGKILL)

@pytest.fixture(scope="module")
def starts():
    subprocess.run(["true"])

def test_with_a_fixture(starts):
    pass

def test_innocent():
    t = threading.Thread(target=open, args=(os.devnull,)); t.start(); t.join()
"""


def test_every_way_to_start_a_process_fails_a_test_that_is_to_stay_in_process(tmp_path: Path):
    file = tmp_path / "test_it.py"
    tests = (f"def test_{way}():\n    {statement}\n" for way, statement in WAYS.items())
    file.write_text("\n".join([FILE, *tests, "def test_also_innocent():\n    pass\n"]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.tiers", file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    refused = re.findall(r"::test_(\w+) starts a process: \S", done.stdout)
    assert set(refused) == {"with_a_fixture", *WAYS}, done.stdout
