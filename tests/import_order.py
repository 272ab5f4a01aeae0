"""In which order each process of `pytest -n` imports the test files.

Every process collects all tests. In a fresh clone there is no byte code, and pytest rewrites the
assertions of every test file before it compiles it. If all processes imported the files in one
order, each would rewrite and compile each file. Here each process begins with another part of the
files, and finds the byte code that the others have written of the rest.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the test files before they are collected, in a process of xdist."""
    worker: dict[str, str] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    files = find_files(session.config)
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    for file in begin_at(files, number % count, count):
        # A file that cannot be imported is reported when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(file)


def find_files(config: pytest.Config) -> list[str]:
    """Return the names of the modules with tests that the command line names, in order."""
    root = config.rootpath
    found: dict[Path, None] = {}
    for word in config.args:
        path = (config.invocation_params.dir / word.partition("::")[0]).resolve()
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        found |= dict.fromkeys(file for file in files if file.is_relative_to(root))
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in found]


def begin_at(files: list[str], part: int, parts: int) -> list[str]:
    """Return all files, beginning with part number `part` of `parts`."""
    begin = len(files) * part // parts
    return files[begin:] + files[:begin]
