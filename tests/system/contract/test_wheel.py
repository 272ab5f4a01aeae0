"""The wheel is whole: an editable install would hide a data file that it lacks."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def built(project: Path, target: Path) -> set[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=100)
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sources(*folders: str, root: Path = ROOT) -> set[str]:
    kinds = {".py", ".toml", ".sql", ".typed"}
    return {
        str(path.relative_to(root))
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in kinds or path.name == "py.typed"
    }


@pytest.mark.parametrize(
    ("project", "folders"),
    [(ROOT, ("watchtower", "agent")), (ROOT / "heartbeat", ("watchtower_heartbeat",))],
    ids=["gpu-watchtower", "watchtower-heartbeat"],
)
def test_the_wheel_holds_every_source_and_data_file(project: Path, folders, tmp_path: Path):
    assert sources(*folders, root=project) - built(project, tmp_path) == set()


def test_the_training_side_gets_nothing_of_the_server(tmp_path: Path):
    names = built(ROOT / "heartbeat", tmp_path)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "watchtower_heartbeat",
        "watchtower_heartbeat_auto.pth",
        "watchtower_heartbeat_auto.py",
    }
