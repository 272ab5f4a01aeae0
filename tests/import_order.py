"""In which order each process of `pytest -n` imports the test files.

In a fresh clone there is no byte code, and pytest rewrites the assertions of every test file before
it compiles it. In one order each process would do so with each file. Here each begins with another
part of the files, and finds the byte code that the others have written of the rest.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the test files before they are collected."""
    place = place_of(session.config)
    if place is None:
        return
    for file in begin_at(find_files(session.config), *place):
        # A file that cannot be imported is reported when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name_of(session.config, file))


def place_of(config: pytest.Config) -> tuple[int, int] | None:
    """Return the number of this process of xdist, and how many there are; None in no such one."""
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is None:
        return None
    return int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])


def find_files(config: pytest.Config) -> list[Path]:
    """Return the files with tests that the command line names, in order."""
    found: dict[Path, None] = {}
    for word in config.args:
        path = (config.invocation_params.dir / word.partition("::")[0]).resolve()
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        found |= dict.fromkeys(file for file in files if file.is_relative_to(config.rootpath))
    return list(found)


def name_of(config: pytest.Config, file: Path) -> str:
    """Return the name of a file as a module."""
    return ".".join(file.relative_to(config.rootpath).with_suffix("").parts)


def begin_at(files: list[Path], part: int, parts: int) -> list[Path]:
    """Return all files, beginning with part number `part` of `parts`."""
    begin = len(files) * part // parts
    return files[begin:] + files[:begin]
