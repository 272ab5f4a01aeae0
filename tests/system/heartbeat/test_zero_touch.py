"""The folder on PYTHONPATH that gives heartbeats to programs without an installation."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.system.frameworks import needs
from tests.system.heartbeat.heartbeat_trainer import a_clean_environment
from tests.system.heartbeat.test_auto import STAND_IN, TRAIN_ONCE, stand_in_for_torch

CLIENT = Path(__file__).parents[3] / "heartbeat"
PYTHONS = sorted(
    {
        *glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python")),
        *glob.glob("/usr/bin/python3"),
        sys._base_executable,
    }
)
OWN = "print('own %s %s' % (__name__, '/mine/sitecustomize.py' in __file__))\n"
AUTO = "'watchtower_heartbeat_auto' in sys.modules"
MODULES = f"import sys; print('%s %d' % ({AUTO}, len(sys.meta_path)))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder as an administrator copies it to a node, with the client around it."""
    place = tmp_path / "client"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CLIENT / "watchtower_heartbeat", place / "watchtower_heartbeat", ignore=ignored)
    shutil.copy(CLIENT / "watchtower_heartbeat_auto.py", place)
    return place / "watchtower_heartbeat/zero_touch"


def run(python: str, *words: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, *words],
        env=a_clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def switched_on(folder: Path, *more: Path, **environment: str) -> dict[str, str]:
    path = os.pathsep.join(map(str, [folder, *more]))
    return {"PYTHONPATH": path, "WATCHTOWER_HEARTBEAT": "auto", "RANK": "0"} | environment


def version_of(python: str) -> tuple[int, ...]:
    text = subprocess.check_output(
        [python, "-c", "import sys; print('%d %d' % sys.version_info[:2])"]
    )
    return tuple(map(int, text.split()))


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_runs_as_ever_and_those_that_can_load_the_hook(folder: Path, python: str):
    plain = run(python, "-c", MODULES)
    assert plain[0] == 0
    works = version_of(python) >= (3, 10)
    found = run(python, "-c", MODULES, **switched_on(folder))
    # The watch for torch comes first, the finder of the client last.
    count = int(plain[1].split()[1]) + (2 if works else 0)
    assert found == (0, f"{works} {count}\n", plain[2])
    off = switched_on(folder, WATCHTOWER_HEARTBEAT="")
    assert run(python, "-c", MODULES, **off) == plain


@pytest.mark.parametrize("python", PYTHONS)
def test_a_sitecustomize_of_the_user_runs_in_its_place(folder: Path, tmp_path: Path, python: str):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text(OWN)
    code = "import sys; print('/mine/' in sys.modules['sitecustomize'].__file__)"
    status, output, errors = run(python, "-c", code, **switched_on(folder, mine))
    assert (status, output, errors) == (0, "own sitecustomize True\nTrue\n", "")


def test_an_error_of_the_user_s_is_told_as_ever_and_costs_no_heartbeat(
    folder: Path, tmp_path: Path
):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    without = run(sys.executable, "-c", "pass", PYTHONPATH=str(mine))
    assert "ValueError: mine" in without[2]
    status, output, errors = run(sys.executable, "-c", MODULES, **switched_on(folder, mine))
    assert (status, output.split()[0]) == (0, "True")
    assert errors == without[2]


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_where_python_reads_neither_path_nor_site_nothing_is_there(folder: Path, option: str):
    plain = run(sys._base_executable, option, "-c", MODULES)
    assert run(sys._base_executable, option, "-c", MODULES, **switched_on(folder)) == plain


def test_steps_are_counted_in_an_environment_without_the_client(folder: Path, tmp_path: Path):
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    torch = Path(stand_in_for_torch(tmp_path / "stand", STAND_IN)["PYTHONPATH"])
    code = f"{TRAIN_ONCE}import watchtower_heartbeat as w; print(w.__file__)"
    python = str(environment / "bin/python")
    status, output, errors = run(python, "-c", code, **switched_on(folder, torch))
    assert (status, errors) == (0, "")
    assert output == f"1 1\n{folder.parent / '__init__.py'}\n"


def test_nothing_but_the_client_becomes_importable(folder: Path):
    (folder.parents[1] / "neighbour.py").touch()
    code = "import neighbour"
    status, _, errors = run(sys._base_executable, "-c", code, **switched_on(folder))
    assert (status, "No module named 'neighbour'" in errors) == (1, True)


@pytest.mark.parametrize("when", ["before", "after the start", "after the first step"])
def test_a_folder_that_is_gone_costs_no_word(folder: Path, tmp_path: Path, when: str):
    torch = Path(stand_in_for_torch(tmp_path / "stand", STAND_IN)["PYTHONPATH"])
    remove = f"import shutil; shutil.rmtree({str(folder.parents[1])!r})\n"
    code = {
        "before": TRAIN_ONCE,
        "after the start": remove + TRAIN_ONCE,
        "after the first step": f"{TRAIN_ONCE}{remove}it.step(); import json, csv\n",
    }[when]
    if when == "before":
        shutil.rmtree(folder)
    status, output, errors = run(sys._base_executable, "-c", code, **switched_on(folder, torch))
    hooks = 0 if when == "before" else 1
    assert (status, output, errors) == (0, f"1 {hooks}\n", "")


def test_a_folder_that_cannot_be_read_costs_no_word(folder: Path, tmp_path: Path):
    if os.geteuid() == 0:
        words = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3")
    else:
        words = (sys._base_executable,)
    if not Path(words[-1]).exists():
        pytest.skip("no Python that another user can start")
    tmp_path.chmod(0o755)
    folder.chmod(0)
    program, *options = *words, "-c", "print(1)"
    assert run(program, *options, **switched_on(folder)) == (0, "1\n", "")
    folder.chmod(0o755)
    (folder / "sitecustomize.py").chmod(0)
    plain = run(program, *options)
    assert run(program, *options, **switched_on(folder))[:2] == plain[:2]


REAL_STEPS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + STORE, rank=0, world_size=1)
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    weight.sum().backward()
    optimizer.step()
dist.new_group([0])
import watchtower_heartbeat, watchtower_heartbeat.record_socket as records
print(bool(records._path), watchtower_heartbeat.__file__)
dist.destroy_process_group()
"""


class TestWithTorch:
    pytestmark = needs("torch")

    def test_a_real_training_step_beats_and_nothing_is_printed(self, folder: Path):
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            code = REAL_STEPS.replace("STORE", repr(f"{short}/store"))
            variables = switched_on(folder, WORLD_SIZE="1", TMPDIR=short)
            status, output, errors = run(sys.executable, "-c", code, **variables)
        assert (status, errors) == (0, "")
        assert output.startswith("True ")
