"""Compiles the small C libraries of drills, into the folder of the drill."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from watchtower.drills.errors import DrillError

COMPILE_DEADLINE_S = 60.0
QUEUED = Path(__file__).with_name("programs") / "queued"
QUEUED_LIBRARIES = {
    "libcuda.so.1": "device.c",
    "libtorch_cpu.so": "engine.c",
    "librecorder.so": "recorder.c",
}
"""File names and sources. The first two have the names of the libraries that they stand in for."""


def find_compiler() -> str | None:
    """Return the path of a C compiler; None without one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def compile_library(source: Path, target: Path, *options: str) -> None:
    """Compile a shared library from one C file. Raises DrillError."""
    compiler = find_compiler()
    if compiler is None:
        raise DrillError(
            f"this drill needs a C compiler for {source.name}", "install gcc, or skip this drill"
        )
    done = subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(target), str(source), *options],
        capture_output=True,
        text=True,
        timeout=COMPILE_DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise DrillError(f"{compiler} cannot compile {source.name}", done.stderr)


def compile_queued(folder: Path) -> dict[str, str]:
    """Compile the libraries of the backend `queued`, and return the environment of its ranks."""
    for name, source in QUEUED_LIBRARIES.items():
        if not (folder / name).exists():
            compile_library(QUEUED / source, folder / name, "-lpthread")
    return {"QUEUED_LIBRARIES": str(folder)}
