"""`pytest --processes`: whatever ends a test or a process, no test is lost without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, *words: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in two processes on these files."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.processes",
            "--processes",
            "2",
            "-rA",
            *words,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_what_passes_fails_and_is_skipped_is_reported(tmp_path: Path):
    done = run(
        tmp_path,
        a="def test_good(): pass\ndef test_bad():\n    print('shown')\n    assert 1 == 2",
        b="import pytest\ndef test_skipped(): pytest.skip('no reason')",
        c="import pytest\n@pytest.fixture\ndef bad(): 1 / 0\ndef test_error(bad): pass",
    )
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 skipped, 1 error" in done.stdout
    assert "assert 1 == 2" in done.stdout
    assert "shown" in done.stdout


def test_good_tests_end_well_and_each_process_has_its_own_folder(tmp_path: Path):
    test = "def test_it(tmp_path): assert 'process-' in str(tmp_path)"
    done = run(tmp_path, a=test, b=test, c=test)
    assert (done.returncode, "3 passed" in done.stdout) == (0, True)


def test_a_file_is_run_by_one_process_in_order_and_shares_its_fixtures(tmp_path: Path):
    shared = (
        "import os, pytest\nSEEN = []\n"
        "@pytest.fixture(scope='module')\ndef shared():\n    yield os.getpid()\n    SEEN.clear()\n"
        "@pytest.mark.parametrize('i', range(20))\n"
        "def test_it(shared, i):\n    SEEN.append(shared)\n"
        "    assert SEEN == [os.getpid()] * (i + 1)\n"
    )
    done = run(tmp_path, **dict.fromkeys("abcdef", shared))
    assert "120 passed" in done.stdout


def test_a_test_that_ends_its_process_fails_and_what_was_not_run_is_counted(tmp_path: Path):
    done = run(
        tmp_path,
        a="import os\ndef test_first(): pass\ndef test_end(): os._exit(3)\ndef test_lost(): pass",
        b="def test_other(): pass",
    )
    assert done.returncode == 1
    assert "its process ended: 3" in done.stdout
    assert "FAILED test_a.py::test_end" in done.stdout
    assert "1 failed, 2 passed" in done.stdout
    assert "1 tests did not run" in done.stdout


def test_enough_failures_end_all_processes_and_their_fixtures(tmp_path: Path):
    slow = (
        "import pathlib, pytest, time\n"
        "@pytest.fixture\ndef slow():\n    pathlib.Path('begun').touch()\n    yield\n"
        "    pathlib.Path('torn down').touch()\n"
        "def test_slow(slow): time.sleep(90)\n"
    )
    bad = (
        "import pathlib, time\ndef test_bad():\n"
        "    while not pathlib.Path('begun').exists(): time.sleep(0.01)\n    assert False\n"
    )
    done = run(tmp_path, "-x", a=slow, b=bad, c=bad)  # one process takes two of them
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert (tmp_path / "torn down").exists()


@pytest.mark.parametrize("count", ["0", "1"])
def test_any_number_of_processes_runs_all_tests(tmp_path: Path, count: str):
    done = run(tmp_path, "--processes", count, a="def test_it(): pass")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True)
