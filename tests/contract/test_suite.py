"""Rules of the test suite for itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import TOGETHER
from tests.import_order import begin_at, find_files, find_seconds, find_share
from tests.system.e2e import test_drills
from tests.system.e2e.drilled import names_of_drills
from tests.tiers import LONG, QUICK, SYSTEM, WAITING

ROOT = Path(__file__).parents[2]


def test_the_files_that_one_process_runs_are_there() -> None:
    assert [file for file in TOGETHER if not (ROOT / file).is_file()] == []


def test_the_files_whose_length_is_known_are_there() -> None:
    names = {file.name for file in SYSTEM.parent.rglob("test_*.py")}
    assert names >= LONG.keys() | WAITING.keys()


def test_make_test_collects_every_folder_but_the_system_tier() -> None:
    # The Makefile lists packages in tests: a test file elsewhere would never run.
    tests = SYSTEM.parent
    parts = {file.relative_to(tests).parts[0] for file in tests.rglob("test_*.py")}
    assert [part for part in parts if not (tests / part / "__init__.py").is_file()] == []
    makefile = (ROOT / "Makefile").read_text()
    (folders,) = re.findall(r"^IN_PROCESS := (.*)$", makefile, re.MULTILINE)
    assert folders == "$(filter-out tests/system/,$(dir $(wildcard tests/*/__init__.py)))"
    (command,) = re.findall(r"^test: .*\n\t(.*)$", makefile, re.MULTILINE)
    assert "$(IN_PROCESS)" in command


def test_the_drills_of_make_test_are_there() -> None:
    test = test_drills.test_the_drill_gets_the_right_rank_and_cause
    file = Path(test_drills.__file__).relative_to(ROOT)
    known = {f"{file}::{test.__name__}[{name}]" for name in names_of_drills("stdlib")}
    assert known >= QUICK


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_every_file_is_the_share_of_one_process_and_none_takes_much_longer(parts: int) -> None:
    files = sorted(SYSTEM.parent.glob("*/**/test_*.py"))
    shares = [find_share(files, part, parts) for part in range(parts)]
    assert sorted(file for share in shares for file in share) == files
    times = [sum(map(find_seconds, share)) for share in shares]
    assert max(times) - min(times) <= max(map(find_seconds, files))


def test_every_process_imports_all_files_and_begins_with_others() -> None:
    files = [Path(f"tests/test_{number}.py") for number in range(10)]
    orders = [begin_at(files, part, 4) for part in range(4)]
    assert all(sorted(order) == files for order in orders)
    assert len({order[0] for order in orders}) == 4
    assert begin_at([], 3, 4) == []


def test_the_files_of_the_command_line_are_found(pytestconfig: pytest.Config) -> None:
    assert Path(__file__) in find_files(pytestconfig)
