"""The file to copy, in an environment with nothing but python3; the one-liners of the documents."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.snapshots.hung_star import NODE, run, star

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
PYTHON = sys._base_executable  # without the packages of the environment
LOCAL = """#!/bin/sh
# Runs the command of ssh, srun or kubectl on this machine, as another node.
case $(basename $0) in
  ssh) shift; exec sh -c "$*" ;;
  srun) while [ "$1" != python3 ]; do shift; done; exec "$@" ;;
  kubectl)
    if [ $1 = get ]; then echo pod/llama-0; exit; fi
    while [ "$1" != -- ]; do shift; done; shift; exec "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def single_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("single") / "watchtower.pyz"
    build = [sys.executable, str(ROOT / "deploy/single_file/build.py"), str(target)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        pytest.skip(f"the wheels for the file cannot be downloaded: {done.stderr[-300:]}")
    return target


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment with python3 and an empty home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(PYTHON)
    for name in ("ssh", "srun", "kubectl"):
        (tmp_path / "bin" / name).write_text(LOCAL)
        (tmp_path / "bin" / name).chmod(0o755)
    return {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
    }


def test_it_needs_only_python_and_leaves_nothing(single_file: Path, bare, tmp_path: Path):
    file = tmp_path / "n0.json"
    command = (PYTHON, "-I", str(single_file))
    with star(size=3, per_node=3) as job:
        job.hang(1)
        match = f"{NODE}={job.mark_of(0)}"
        done = run(*command, "snapshot", "--match", match, "-o", str(file), environment=bare)
    assert done.returncode == 0, done
    assert "read_shard" in done.stdout
    done = run(*command, "diagnose", "--json", "--exit-code", str(file), environment=bare)
    assert done.returncode == 1, done
    (suspect,) = json.loads(done.stdout)["suspects"]
    assert (suspect["rank"], "read_shard" in suspect["where"]) == (1, True)
    assert os.listdir(bare["HOME"]) == []
    assert os.listdir(bare["TMPDIR"]) == []


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--help",), 0, "usage"),
        ((), 2, "usage"),
        (("serve",), 2, "usage"),
        (("diagnose", "/missing.json"), 2, "/missing.json"),
        (("snapshot", "--node"), 2, "--node"),
    ],
)
def test_wrong_usage_has_an_exit_code_and_a_message(single_file, bare, words, code, text):
    done = run(PYTHON, str(single_file), *words, environment=bare)
    assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done
    assert os.listdir(bare["TMPDIR"]) == []


def test_a_full_disk_has_an_exit_code_and_a_message(single_file, bare):
    """A limit on the size of files stands in for the disk: py-spy does not fit."""
    script = "ulimit -f 1024; trap '' XFSZ; exec " + shlex.join(
        [PYTHON, str(single_file), "diagnose", "x"]
    )
    done = run("sh", "-c", script, environment=bare)
    assert done.returncode == 2, done
    assert (
        f"cannot unpack its programs (12 MB) into {bare['TMPDIR']}: File too large" in done.stderr
    )
    assert done.stderr.count("\n") == 1
    assert os.listdir(bare["TMPDIR"]) == []


def one_liners() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "docs/snapshots.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(4), ids=["one machine", "ssh", "srun", "kubectl"])
def test_the_one_liners_of_the_page_name_the_rank(single_file, bare, tmp_path: Path, number: int):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "watchtower.pyz").symlink_to(single_file)
    with star(size=3, per_node=3, name="one-liner") as job:
        job.hang(2)
        # Only the ranks of this test, as on a node with one job.
        script = one_liners()[number].replace(" --match SLURM_JOB_ID=48213", "")
        script = script.replace("snapshot", f"snapshot --match {NODE}={job.mark_of(0)}", 1)
        script = script.replace(f"snapshot --match {NODE}={job.mark_of(0)}-", "snapshot-")
        done = subprocess.run(
            ["sh", "-c", script],
            cwd=folder,
            env=bare,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert "one-liner: suspect" in done.stdout, done
    assert "Rank 2 " in done.stdout
    assert os.listdir(bare["TMPDIR"]) == []
