"""A clean Debian to install into, and how programs are run in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

DEADLINE_S = 900.0
LISTED = ("etc", "opt", "usr", "var/lib")
OWN_BY_DPKG = re.compile(r"^var/lib/(dpkg|apt|rpm|systemd|man-db)/|^var/lib/pam|/ld\.so\.cache$")


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
