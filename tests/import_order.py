"""Which test files each process of `pytest -n` imports, and in which order.

With `--dist each` every process collects and runs a share of the files, and no other file. So
`make test` imports and collects each file once, and not once in each process.

Otherwise every process collects all tests, and the next free one runs the next test. In a fresh
clone there is no byte code, and pytest rewrites the assertions of every test file before it
compiles it. If all processes imported the files in one order, each would rewrite and compile each
file. Here each process begins with another part of the files, and finds the byte code that the
others have written of the rest.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import BYTES_PER_S, LONG, WAITING

SHARES = "shares"
"""What a process is told: whether it runs a share of the files."""

SHARE = pytest.StashKey[frozenset[Path]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the test files before they are collected, in a process that collects all."""
    place = place_of(session.config)
    if place is None or is_sharing(session.config):
        return
    for file in begin_at(find_files(session.config), *place):
        # A file that cannot be imported is reported when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name_of(session.config, file))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let the processes know of `--dist each`: xdist hides it from them."""
    node.workerinput[SHARES] = has_shares(node.config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a test file that is another process's share."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and not is_mine(config, collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of another process's files that the command line names one by one."""
    items[:] = [item for item in items if is_mine(config, item.path)]


def is_mine(config: pytest.Config, file: Path) -> bool:
    """Whether this process runs the tests of a file."""
    place = place_of(config)
    if place is None or not is_sharing(config):
        return True
    if SHARE not in config.stash:
        config.stash[SHARE] = find_share(find_files(config), *place)
    return file in config.stash[SHARE]


def place_of(config: pytest.Config) -> tuple[int, int] | None:
    """Return the number of this process of xdist, and how many there are; None in no such one."""
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is None:
        return None
    return int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])


def has_shares(config: pytest.Config) -> bool:
    """Whether each process is to run a share of the files: `--dist each`."""
    return str(config.getoption("dist")) == "each"


def is_sharing(config: pytest.Config) -> bool:
    """Whether this process of xdist runs a share of the files."""
    worker: dict[str, bool] = getattr(config, "workerinput", {})
    return worker.get(SHARES, False)


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


def find_share(files: list[Path], part: int, parts: int) -> frozenset[Path]:
    """Return the files of process number `part` of `parts`: all of them take about as long."""
    seconds = {file: find_seconds(file) for file in files}
    shares: list[list[Path]] = [[] for _ in range(parts)]
    totals = [0.0] * parts
    for file in sorted(files, key=lambda file: (-seconds[file], file)):
        least = totals.index(min(totals))
        shares[least].append(file)
        totals[least] += seconds[file]
    return frozenset(shares[part])


def find_seconds(file: Path) -> float:
    """Return about how long the tests of a file take."""
    known = LONG.get(file.name) or WAITING.get(file.name)
    return known or file.stat().st_size / BYTES_PER_S
