"""Prints the interpreters on which `make test-pythons` runs the quick tests, one a line.

These are the system's own Python, the oldest and the newest one that is found, in /usr or in pyenv.
The version that runs this program is left out: `make test` uses it.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys

OLDEST = (3, 10)
SYSTEM = "/usr/bin/python3"
VERSION = "import ensurepip, sys; print(*sys.version_info[:3])"


def find_interpreters() -> dict[tuple[int, ...], str]:
    """Return the usable interpreters by version. The system's own comes before others."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    patterns = ("/usr/bin/python3.1[0-9]", "/usr/local/bin/python3.1[0-9]")
    patterns += (f"{pyenv}/versions/3.1[0-9].*/bin/python",)
    paths = [SYSTEM, *(path for pattern in patterns for path in sorted(glob.glob(pattern)))]
    found: dict[tuple[int, ...], str] = {}
    for path in paths:
        version = read_version(path)
        if version >= OLDEST:
            found.setdefault(version, path)
    return found


def read_version(path: str) -> tuple[int, ...]:
    """Return the version of an interpreter; empty if it cannot make environments."""
    try:
        printed = subprocess.check_output([path, "-c", VERSION], stderr=subprocess.DEVNULL)
        return tuple(map(int, printed.split()))
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


def choose(found: dict[tuple[int, ...], str], used: tuple[int, ...]) -> list[str]:
    """Return the system's Python, the oldest and the newest one, without the one in use."""
    own = [version for version, path in found.items() if path == SYSTEM]
    wanted = dict.fromkeys([*own, *([min(found), max(found)] if found else [])])
    return [found[version] for version in wanted if version != used]


if __name__ == "__main__":
    print("\n".join(choose(find_interpreters(), tuple(sys.version_info[:3]))))
