"""What `make dist` builds, installed and used in environments with nothing else in them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.interpreters import find_interpreters

ROOT = Path(__file__).parents[3]
CONSTRAINTS = ROOT / "constraints.txt"
DEADLINE_S = 280.0
EPOCH = "1700000000"
CLOUDWATCH = "watchtower==3.4.0"
"""PyPI's distribution with a package of our name."""

pytestmark = pytest.mark.timeout(300)


def run(*words: str | Path, status: int = 0, **environment: str) -> str:
    """Run a program away from the source folder, without settings for Python's paths."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, words)),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=known | environment,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def build(source: Path, target: Path) -> Path:
    words = ("make", "-C", source, "--no-print-directory", "dist", f"DIST={target}")
    ready = ROOT / ".venv/.ready"
    run(*words, f"VENV={ROOT / '.venv'}", "-o", str(ready), SOURCE_DATE_EPOCH=EPOCH)
    return target


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def test_the_same_sources_are_the_same_bytes(dist: Path, tmp_path: Path):
    names = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT)
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / "src" / name)  # with other times and modes
    again = build(tmp_path / "src", tmp_path / "dist")
    digests = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.*")}
        for folder in (dist, again)
    ]
    assert len(digests[0]) == 4
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("wheel", "start", "trees"),
    [
        ("gpu_watchtower-*.whl", "", ("watchtower", "agent", "gpu_watchtower.py")),
        ("watchtower_heartbeat-*.whl", "heartbeat/", ("heartbeat/watchtower_heartbeat*",)),
    ],
)
def test_wheel_and_sdist_have_every_file_of_the_packages(dist: Path, wheel, start, trees):
    listed = subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard", *trees], cwd=ROOT, text=True
    )
    wanted = {name.removeprefix(start) for name in listed.splitlines()}
    assert len(wanted) > 15
    assert wanted <= set(zipfile.ZipFile(only(dist, wheel)).namelist())
    with tarfile.open(only(dist, wheel.replace(".whl", ".tar.gz"))) as source:
        assert wanted <= {name.partition("/")[2] for name in source.getnames()}


@pytest.mark.parametrize("wheel", ["gpu_watchtower-*.whl", "watchtower_heartbeat-*.whl"])
def test_the_description_has_addresses_of_the_project_and_no_relative_link(dist: Path, wheel):
    archive = zipfile.ZipFile(only(dist, wheel))
    (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
    metadata = message_from_bytes(archive.read(name))
    urls = dict(each.split(", ") for each in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Source"} <= set(urls)
    links = re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload()))
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    for link in links:
        home = urls["Source"].removesuffix("/heartbeat") + "/"
        if link.startswith(home):
            assert (ROOT / link.removeprefix(home).partition("#")[0]).exists(), link


@pytest.fixture(scope="module")
def clean(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment of the oldest Python here, with the two wheels in it."""
    found = find_interpreters()
    place = tmp_path_factory.mktemp("clean") / "environment"
    run(found[min(found)] if found else sys.executable, "-m", "venv", place)
    wheel = only(dist, "gpu_watchtower-*.whl")
    install(place, f"gpu-watchtower[all] @ file://{wheel}", "--find-links", dist)
    return place / "bin"


def install(place: Path, *words: str | Path) -> None:
    run(place / "bin/python", "-m", "pip", "install", "-q", "-c", CONSTRAINTS, *words)


def test_what_is_installed_runs_and_names_the_rank_of_a_drill(clean: Path):
    assert run(clean / "watchtower", "--version").startswith("watchtower ")
    assert run(clean / "watchtower-agent", "--version").startswith("watchtower-agent ")
    fast = ("--ranks", "4", "--config", ROOT / "tests/system/e2e/fast.toml")
    text = run(clean / "watchtower", "drill", "dataloader_sleep", "--backend", "stdlib", *fast)
    assert "hung: dataloader_stall, rank " in text, text
    words = run(clean / "watchtower-agent", "doctor", "--tower", "http://127.0.0.1:9", status=1)
    assert "http://127.0.0.1:9 accepts no reports" in words


def test_a_distribution_with_the_same_package_is_named_and_so_is_a_lost_file(
    dist: Path, tmp_path: Path
):
    place = tmp_path / "mixed"
    run(sys._base_executable, "-m", "venv", place)
    wheel = only(dist, "gpu_watchtower-*.whl")
    install(place, f"gpu-watchtower @ file://{wheel}", "--find-links", dist)
    assert run(place / "bin/watchtower", "--version").startswith("watchtower ")
    try:
        install(place, "--no-deps", CLOUDWATCH)
    except AssertionError as error:
        pytest.skip(f"{CLOUDWATCH} cannot be installed: {str(error)[-300:]}")
    for program in ("watchtower", "watchtower-agent"):
        text = run(place / "bin" / program, "--version", status=2)
        assert "/watchtower/__init__.py was replaced" in text
        assert "belongs to the distribution watchtower 3.4.0 too" in text
        assert "uv tool install" in text
    run(place / "bin/python", "-m", "pip", "uninstall", "-q", "-y", "watchtower")
    text = run(place / "bin/watchtower", "--version", status=2)
    assert "/watchtower/__init__.py is missing" in text


def test_a_folder_of_the_same_name_on_the_path_is_named(clean: Path, tmp_path: Path):
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/__init__.py").touch()
    text = run(clean / "watchtower-agent", "--version", status=2, PYTHONPATH=str(tmp_path))
    assert f"another package `agent` comes before its own: {tmp_path / 'agent'}" in text


def test_the_client_does_not_collide_with_it_in_a_training_image(dist: Path, tmp_path: Path):
    place = tmp_path / "image"
    run(sys._base_executable, "-m", "venv", place)
    install(place, only(dist, "watchtower_heartbeat-*.whl"))
    try:
        install(place, "--no-deps", CLOUDWATCH)
    except AssertionError as error:
        pytest.skip(f"{CLOUDWATCH} cannot be installed: {str(error)[-300:]}")
    code = "from watchtower_heartbeat import beat; beat(1); print('beats')"
    assert run(place / "bin/python", "-c", code, RANK="0", WORLD_SIZE="1") == "beats\n"
