"""The oldest and the newest interpreter found here run the commands that start our modules."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.interpreters import find_interpreters
from watchtower.drills import environment
from watchtower.drills.environment import Environment
from watchtower.service.interpreter import module_command

FOUND = find_interpreters() or {tuple(sys.version_info[:3]): sys.executable}
PYTHONS = [FOUND[version] for version in dict.fromkeys((min(FOUND), max(FOUND)))]
"""They have no packages of ours: folders on PYTHONPATH imitate these."""

TOWER = "import sys; print('http://127.0.0.1:1', *sys.argv[1:], flush=True); input()"
WRONG = "raise SystemExit('a file of the current folder was imported')"


def make_packages(folder: Path, **programs: str) -> str:
    for name, program in programs.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
        (folder / name / "__main__.py").write_text(program)
    return str(folder)


@pytest.mark.parametrize("python", PYTHONS)
def test_no_file_of_the_current_folder_is_imported(python, tmp_path):
    (tmp_path / "here").mkdir()
    for name in ("runpy", "json", "ours", "sys", "types"):
        (tmp_path / "here" / f"{name}.py").write_text(WRONG)
    program = "import json, sys; print(json.dumps(sys.argv[1:]), __name__)"
    path = make_packages(tmp_path / "packages", ours=program)
    done = subprocess.run(
        module_command("ours", "-m", "two words", python=python),
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ('["-m", "two words"] __main__\n', "")


@pytest.mark.parametrize("python", PYTHONS)
def test_the_tower_of_a_drill_starts(python, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "module_command", partial(module_command, python=python))
    monkeypatch.setenv("PYTHONPATH", make_packages(tmp_path / "packages", watchtower=TOWER))
    drill = Environment(
        tmp_path, nodes=0, interval_s=1.0, detection={}, forwarded=False, start_deadline_s=60.0
    )
    with drill as started:
        assert started.tower_url == "http://127.0.0.1:1"
        assert "serve --port" in (tmp_path / "tower-1.out").read_text()
