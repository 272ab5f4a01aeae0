"""The Debian packages in a clean root: installed, used, upgraded, removed and purged.

`make test-packages` runs it, because a root and packages take minutes to make.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEADLINE_S = 900.0
NAMES = ("watchtower", "watchtower-agent", "watchtower-tower")
LISTED = ("etc", "opt", "usr", "var/lib")
OWN_BY_DPKG = re.compile(r"^var/lib/(dpkg|apt|systemd|man-db)/|^var/lib/pam|/ld\.so\.cache$")

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(DEADLINE_S),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a root"),
    pytest.mark.skipif(not shutil.which("mmdebstrap"), reason="apt install mmdebstrap"),
]


def run(*words: str | Path, status: int = 0) -> str:
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


class CleanRoot:
    """Debian 12 with Python and systemd, and nothing of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        include = "--include=python3,systemd"
        made = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=apt", include, "bookworm", str(folder)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        if made.returncode:
            pytest.skip(f"Debian cannot be downloaded: {made.stderr[-300:]}")

    def run(self, *words: str, status: int = 0) -> str:
        """Run a program in the root, with processes of its own."""
        enter = ("unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.folder}/proc")
        return run(*enter, "chroot", self.folder, *words, status=status)

    def install(self, *packages: Path) -> None:
        for package in packages:
            shutil.copy(package, self.folder / "tmp")
        files = [f"/tmp/{package.name}" for package in packages]
        self.run("dpkg", "--force-confold", "--install", *files)
        for file in files:
            (self.folder / file[1:]).unlink()

    def list_files(self) -> set[str]:
        paths = (path for top in LISTED for path in (self.folder / top).rglob("*"))
        names = {str(path.relative_to(self.folder)) for path in paths if not path.is_dir()}
        return {name for name in names if not OWN_BY_DPKG.search(name)}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The packages, in the order of their installation."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("apt install python3-venv")
    folder = tmp_path_factory.mktemp("packages")
    run("make", "-C", ROOT, "-o", ROOT / ".venv/.ready", "packages", f"DIST={folder}")
    return [next(folder.glob(f"{name}_*.deb")) for name in NAMES]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanRoot]:
    folder = tmp_path_factory.mktemp("root")
    folder.chmod(0o755)
    yield CleanRoot(folder / "debian")
    shutil.rmtree(folder, ignore_errors=True)


def make_newer(package: Path, folder: Path, settings: str = "") -> Path:
    """The same package as another version, with other default settings."""
    tree = folder / package.stem
    run("dpkg-deb", "--raw-extract", package, tree)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("0.1.0", "0.1.1"))
    if settings:
        (tree / settings).write_text((tree / settings).read_text() + "# new default\n")
    newer = folder / package.name.replace("0.1.0", "0.1.1")
    run("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", tree, newer)
    return newer


def test_the_scripts_of_the_packages_are_sound() -> None:
    for script in (ROOT / "deploy/packages/debian").iterdir():
        run("sh", "-n", script)
        if shutil.which("shellcheck"):
            run("shellcheck", script)


def test_they_are_installed_name_a_rank_are_upgraded_and_leave_nothing_but_data(
    packages: list[Path], clean: CleanRoot, tmp_path: Path
) -> None:
    before = clean.list_files()
    clean.install(*packages)
    assert clean.run("watchtower", "--version").startswith("watchtower ")
    assert "watchtower-agent:x:" in (clean.folder / "etc/passwd").read_text()
    wanted = clean.folder / "etc/systemd/system/multi-user.target.wants"
    assert {path.name for path in wanted.iterdir()} >= {
        "watchtower-agent.service",
        "watchtower-tower.service",
    }
    assert "watchtower why" in (clean.folder / "usr/share/man/man1/watchtower.1").read_text()
    run("bash", "-n", clean.folder / "usr/share/bash-completion/completions/watchtower")
    drill = clean.run("watchtower", "drill", "dataloader_sleep", "--backend", "stdlib")
    assert "hung: dataloader_stall, rank " in drill, drill

    settings = clean.folder / "etc/watchtower/agent.env"
    settings.write_text("WATCHTOWER_URL=http://mine:1\n")
    data = clean.folder / "var/lib/watchtower/watchtower.db"
    data.parent.mkdir()
    data.touch()
    newer = [make_newer(package, tmp_path) for package in (packages[0], packages[2])]
    newer.append(make_newer(packages[1], tmp_path, "etc/watchtower/agent.env"))
    clean.install(*newer)
    assert settings.read_text() == "WATCHTOWER_URL=http://mine:1\n"
    listed = clean.run("dpkg-query", "--show", "--showformat=${Version} ", *NAMES)
    assert listed.split() == ["0.1.1"] * 3

    clean.run("dpkg", "--remove", *reversed(NAMES))
    assert settings.exists()
    clean.run("dpkg", "--purge", *reversed(NAMES))
    # What else is new in /etc are copies of the lists of users.
    left = {name for name in clean.list_files() - before if "watchtower" in name}
    assert left == {"var/lib/watchtower/watchtower.db"}
    assert not (clean.folder / "opt/watchtower").exists()
