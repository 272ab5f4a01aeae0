"""WATCHTOWER_HEARTBEAT=auto, installed from built wheels into clean environments."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.system.frameworks import needs
from tests.system.heartbeat.heartbeat_trainer import Trainer, a_clean_environment, open_pages

HEARTBEAT = Path(__file__).parents[3] / "heartbeat"
AUTO = {"WATCHTOWER_HEARTBEAT": "auto", "RANK": "3", "WORLD_SIZE": "4"}
IMPORTED = "import sys; print('watchtower_heartbeat' in sys.modules, len(sys.meta_path))"

torch_only = needs("torch")


class Environment:
    """A virtual environment with nothing but the client in it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder / "venv"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", self.folder], check=True, timeout=100
        )
        self.python = str(self.folder / "bin" / "python")
        self.packages = Path(self.run("import sysconfig; print(sysconfig.get_path('purelib'))"))
        build = f"from hatchling import build; build.build_{kind}({str(folder)!r})"
        subprocess.run([sys.executable, "-c", build], cwd=HEARTBEAT, check=True, timeout=100)
        (wheel,) = folder.glob("*.whl")
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--no-index"]
        subprocess.run([*pip, "--no-deps", "--quiet", wheel], check=True, timeout=100)

    def run(self, program: str, *options: str, **environment: str) -> str:
        """The output of a program, which must end in order and print nothing on stderr."""
        done = subprocess.run(
            [self.python, *options, "-c", program],
            env=a_clean_environment() | environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Environment:
    """The client as users install it."""
    return Environment(tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def editable(tmp_path_factory) -> Environment:
    """The client as its developers install it."""
    return Environment(tmp_path_factory.mktemp("editable"), "editable")


@pytest.fixture(params=["wheel", "editable"])
def installed(request) -> Environment:
    """Either."""
    environment: Environment = request.getfixturevalue(request.param)
    return environment


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Environment:
    """An installation of this test's own, to take apart."""
    return Environment(tmp_path_factory.mktemp("broken"), "wheel")


@pytest.fixture
def rank(wheel, train):
    """Start a program of an environment that borrows torch from ours."""

    def start(environment: Environment = wheel, **variables: str) -> Trainer:
        torch = sysconfig.get_path("purelib")
        return train("bare.py", python=environment.python, PYTHONPATH=torch, **variables)

    return start


@pytest.mark.parametrize("value", ["", "on", "off", "automatic"])
def test_without_the_switch_nothing_is_imported(installed, value) -> None:
    assert installed.run(IMPORTED, WATCHTOWER_HEARTBEAT=value) == installed.run(IMPORTED, "-S")
    check = "import sys; print('watchtower_heartbeat_auto' in sys.modules)"
    assert installed.run(check, WATCHTOWER_HEARTBEAT=value) == "False"


def test_with_the_switch_a_program_that_has_no_torch_is_left_alone(installed) -> None:
    plain = int(installed.run("import sys; print(len(sys.meta_path))"))
    assert installed.run(IMPORTED, **AUTO) == f"False {plain + 1}"


def test_an_import_that_fails_fails_as_ever_and_others_work(installed) -> None:
    program = """
import importlib, importlib.util, json, colorsys
for name in ('no_such_module', 'torch.optim.optimizer', 'json.nothing'):
    try: importlib.import_module(name)
    except ModuleNotFoundError as error: print(error.name, end=' ')
    else: raise SystemExit(name)
print(importlib.util.find_spec('torch'), importlib.util.find_spec('csv').name)
importlib.invalidate_caches()
"""
    expected = "no_such_module torch json.nothing None csv"
    assert installed.run(program, **AUTO) == expected
    assert installed.run(program) == expected


@pytest.mark.parametrize(
    ("option", "works"), [("-I", True), ("-E", True), ("-s", True), ("-S", False)]
)
def test_options_that_leave_out_site_leave_out_the_switch(installed, option, works) -> None:
    check = "import sys; print('watchtower_heartbeat_auto' in sys.modules)"
    assert installed.run(check, option, **AUTO) == str(works)


STAND_IN = """
steps, hooks = 0, []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
def step():
    global steps
    steps += 1
    for hook in hooks: hook(object(), (), {})
"""
TRAIN_ONCE = """
import torch.optim.optimizer as it
import csv
it.step()
print(it.steps, len(it.hooks))
"""


def stand_in_for_torch(folder: Path, optimizer: str = STAND_IN) -> dict[str, str]:
    """As little of torch as the switch touches, for what the real one never does."""
    (folder / "torch" / "optim").mkdir(parents=True)
    for name in ("torch/__init__.py", "torch/optim/__init__.py"):
        (folder / name).touch()
    (folder / "torch" / "optim" / "optimizer.py").write_text(optimizer)
    return {"PYTHONPATH": str(folder), **AUTO}


def test_a_package_that_is_half_gone_costs_no_word(broken, tmp_path) -> None:
    found = stand_in_for_torch(tmp_path)
    assert broken.run(TRAIN_ONCE, **found) == "1 1"
    for part in ("watchtower_heartbeat/torch.py", "watchtower_heartbeat/__init__.py"):
        (broken.packages / part).write_text("raise RuntimeError('half gone')")
        assert broken.run(TRAIN_ONCE, **found) == "1 1"
    (broken.packages / "watchtower_heartbeat_auto.py").write_text("def switch_on(: broken")
    assert broken.run(TRAIN_ONCE, **found) == "1 0"
    (broken.packages / "watchtower_heartbeat_auto.py").unlink()
    assert broken.run(TRAIN_ONCE, **found) == "1 0"


@pytest.mark.parametrize("body", ["raise RuntimeError('no hooks today')", "del hooks[0]"])
def test_a_torch_that_takes_no_hooks_breaks_no_import(wheel, tmp_path, body) -> None:
    found = stand_in_for_torch(tmp_path, STAND_IN.replace("hooks.append(hook)", body))
    assert wheel.run(TRAIN_ONCE, **found) == "1 0"


def test_a_torch_from_before_there_were_hooks_breaks_no_import(wheel, tmp_path) -> None:
    old = STAND_IN.replace("register_optimizer_step_post_hook", "something_else")
    assert wheel.run(TRAIN_ONCE, **stand_in_for_torch(tmp_path, old)) == "1 0"


def test_uninstalling_takes_the_switch_away(tmp_path) -> None:
    environment = Environment(tmp_path, "wheel")
    assert (environment.packages / "watchtower_heartbeat_auto.pth").exists()
    pip = [sys.executable, "-m", "pip", "--python", environment.python]
    command = [*pip, "uninstall", "--yes", "--quiet", "watchtower-heartbeat"]
    subprocess.run(command, check=True, timeout=100)
    assert not list(environment.packages.glob("*watchtower*"))


ONE_STEP = "p = torch.nn.Parameter(torch.ones(1)); o = torch.optim.SGD([p], lr=0.1); o.step()"


class TestWithTorch:
    pytestmark = torch_only

    def test_a_training_loop_without_a_line_of_ours_beats(self, installed, rank) -> None:
        trainer = rank(installed, **AUTO)
        trainer.do("import sys; from watchtower_heartbeat_auto import ImportWatch")
        trainer.do("assert isinstance(sys.meta_path[0], ImportWatch); import torch")
        trainer.do("assert not any(isinstance(finder, ImportWatch) for finder in sys.meta_path)")
        trainer.do("assert 'watchtower_heartbeat' not in sys.modules")
        assert open_pages(trainer.pid) == []
        trainer.do(ONE_STEP)
        trainer.do("o.step()")
        view = trainer.page()
        assert (view.step, view.rank, view.world_size) == (2, 3, 4)
        assert trainer.end("") == (0, "")

    def test_an_ordinary_import_makes_its_page_as_ever(self, rank) -> None:
        trainer = rank(**AUTO)
        trainer.do("import torch, watchtower_heartbeat")
        assert trainer.page().step == -1

    def test_install_beside_the_switch_counts_no_step_twice(self, rank) -> None:
        trainer = rank(**AUTO)
        trainer.do("import torch; from watchtower_heartbeat.torch import install; install()")
        trainer.do(ONE_STEP)
        assert trainer.page().step == 1

    def test_without_the_switch_torch_trains_without_a_page(self, rank) -> None:
        trainer = rank(RANK="0")
        trainer.do(f"import torch; {ONE_STEP}")
        assert open_pages(trainer.pid) == []

    def test_a_sitecustomize_that_imports_torch_and_puts_a_finder_first_is_no_obstacle(
        self, wheel, train, tmp_path
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            "import sys\n"
            "class Mine:\n"
            "    def find_spec(self, name, path=None, target=None): return None\n"
            "sys.meta_path.insert(0, Mine())\n"
            "import torch\n"
        )
        paths = os.pathsep.join([str(tmp_path), sysconfig.get_path("purelib")])
        trainer = train("bare.py", python=wheel.python, PYTHONPATH=paths, **AUTO)
        trainer.do(f"import sys; assert 'torch' in sys.modules; import torch; {ONE_STEP}")
        assert trainer.page().step == 1

    def test_torch_that_was_imported_before_the_switch_is_hooked_too(self, rank) -> None:
        trainer = rank(RANK="0")
        trainer.do("import torch, watchtower_heartbeat_auto as auto; auto.switch_on()")
        trainer.do(ONE_STEP)
        assert trainer.page().step == 1

    def test_a_spawned_helper_that_imports_torch_has_no_page(self, rank) -> None:
        trainer = rank(**AUTO)
        trainer.do("import torch, multiprocessing, os")
        trainer.do("pool = multiprocessing.get_context('spawn').Pool(1)")
        trainer.do("assert pool.apply(torch.add, (torch.ones(1), 1)) == 2")
        assert open_pages(int(trainer.ask("pool.apply(os.getpid)"))) == []
        trainer.do("pool.terminate(); pool.join()")
