"""Writes `watchtower.pyz`: snapshot and diagnose as one file to copy. `make single-file` runs it.

python deploy/single_file/build.py TARGET
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipapp
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = Path(__file__).with_name("start.py")
PACKAGES = {"watchtower": ROOT, "agent": ROOT, "watchtower_heartbeat": ROOT / "heartbeat"}
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""Each of them needs a msgspec of its own."""

BACKPORTS = {"3.10": ("tomli",)}
"""What else a Python needs."""


def main(target: Path) -> None:
    """Write the file for this kind of machine."""
    machine = platform.machine()
    with tempfile.TemporaryDirectory(prefix="single-file-") as text:
        folder = Path(text)
        content = folder / "content"
        for name, parent in PACKAGES.items():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(parent / name, content / "packages" / name, ignore=ignored)
        for python in PYTHONS:
            native = content / "native" / f"cp{python.replace('.', '')}"
            for package in ("msgspec", *BACKPORTS.get(python, ())):
                _unpack(_download(package, python, folder), native)
        unpacked = folder / "py-spy"
        _unpack(_download("py-spy", PYTHONS[0], folder), unpacked)
        (content / "bin").mkdir()
        (tool,) = unpacked.glob("*.data/scripts/py-spy")
        shutil.copy(tool, content / "bin/py-spy")
        for licence in unpacked.glob("*.dist-info/licenses/*"):
            shutil.copy(licence, content / "bin" / f"py-spy-{licence.name}")
        (content / "MACHINE").write_text(machine, "ascii")
        shutil.copy(START, content / "__main__.py")
        target.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(content, target, "/usr/bin/env python3", compressed=True)
        target.chmod(0o755)
    size = f"{target.stat().st_size / 1e6:.1f} MB"
    print(f"{target}: {size}, for {machine} and Python {PYTHONS[0]} to {PYTHONS[-1]}")


def _download(name: str, python: str, folder: Path) -> Path:
    """Download the pinned wheel of a package for one Python, and return its path."""
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    pin = re.search(rf"^{re.escape(name)}==[^\s;]+", pins, re.MULTILINE)
    if pin is None:
        sys.exit(f"constraints.txt has no version of {name}")
    into = folder / f"{name}-{python}"
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    options += ["--platform", f"manylinux2014_{platform.machine()}", "--python-version", python]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), pin[0]], check=True
    )
    (wheel,) = into.iterdir()
    return wheel


def _unpack(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
