"""The start of every installed command: checks that the packages are whole, then runs them.

The distribution `watchtower` of PyPI, which sends logs to CloudWatch, has a package of the same
name. Whichever is installed last replaces files of the other, and removing it removes them. No
other distribution has a module with the name of this one, so it can still report that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

PACKAGES = ("watchtower", "agent")
UNUSABLE = 2
"""Exit code, as of all commands (docs/commands.md). systemd does not start the agent again."""

ADVICE = (
    "Install it into an environment of its own: `uv tool install 'gpu-watchtower[all]'` or "
    "`pipx install 'gpu-watchtower[all]'`"
)


def run_command() -> int:
    """Run `watchtower`."""
    _refuse_if_broken("watchtower")
    from watchtower.cli import main  # noqa: PLC0415 - only if it is ours

    return main()


def run_agent() -> None:
    """Run `watchtower-agent`."""
    _refuse_if_broken("watchtower-agent")
    from agent.cli import main  # noqa: PLC0415 - only if it is ours

    main()


def _refuse_if_broken(program: str) -> None:
    trouble = find_trouble(os.path.dirname(os.path.abspath(__file__)))
    if trouble:
        print(f"{program}: {trouble}. {ADVICE}", file=sys.stderr)
        raise SystemExit(UNUSABLE)


def find_trouble(folder: str) -> str:
    """Return what is wrong with the packages that were installed into `folder`; "" if nothing.

    Every file that was installed must be there with its size, and Python must find the packages
    here. This takes 3 ms. In a source folder nothing was installed: only the second is checked.
    """
    for name, size in _list_files(folder):
        path = os.path.join(folder, name)
        found = os.path.getsize(path) if os.path.isfile(path) else -1
        if found != size:
            what = "is missing" if found < 0 else "was replaced"
            return f"its file {path} {what}{_name_others(name)}"
    for package in PACKAGES:
        expected = os.path.join(folder, package)
        for place in sys.path:
            other = os.path.join(place or os.getcwd(), package)
            if os.path.realpath(other) == os.path.realpath(expected):
                break
            if os.path.isfile(os.path.join(other, "__init__.py")):
                return f"another package `{package}` comes before its own: {other}"
    return ""


def _list_files(folder: str) -> Iterator[tuple[str, int]]:
    """Yield name and size of each installed file of the packages."""
    for entry in os.listdir(folder):
        if entry.startswith("gpu_watchtower-") and entry.endswith(".dist-info"):
            with open(os.path.join(folder, entry, "RECORD"), encoding="utf-8") as file:
                for line in file:
                    name, _, size = line.strip().rsplit(",", 2)
                    if size and name.partition("/")[0] in PACKAGES:
                        yield name, int(size)


def _name_others(name: str) -> str:
    """Return which other distributions have a file of this name."""
    from importlib.metadata import distributions  # noqa: PLC0415 - slow, and seldom needed

    others = {
        f"{each.metadata['Name']} {each.version}"
        for each in distributions()
        if each.metadata["Name"] != "gpu-watchtower"
        and any(str(file) == name for file in each.files or ())
    }
    return f", and belongs to the distribution {' and '.join(sorted(others))} too" if others else ""
