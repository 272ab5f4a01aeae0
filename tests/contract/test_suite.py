"""Rules of the test suite for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TOGETHER
from tests.import_order import begin_at, find_files
from tests.quick import DRILLS, LONG, QUICK, WAITING, divide, find_touched, name_of
from tests.quick import find_files as find_quick_files
from tests.system.e2e import test_drills
from tests.system.e2e.drilled import names_of_drills
from tests.tiers import SYSTEM

ROOT = Path(__file__).parents[2]


CHEAP_OR_APART = {
    "tests/system/contract/test_tiers.py",  # the fixture is one of a test that it writes
    "tests/system/deploy/test_install.py",  # the fixture asks make for a name
    "tests/system/deploy/test_images.py",  # `make test-packages` has one process
    "tests/system/deploy/test_packages.py",
    "tests/system/gpu/test_real_gpus.py",  # so has `make test-gpu`
}


def test_the_files_that_one_process_runs_are_those_that_share_a_fixture() -> None:
    assert [file for file in TOGETHER if not (ROOT / file).is_file()] == []
    sharing = {
        str(file.relative_to(ROOT))
        for file in SYSTEM.rglob("test_*.py")
        if '\n@pytest.fixture(scope="module"' in file.read_text("utf-8")
    }
    assert sharing - CHEAP_OR_APART <= TOGETHER


def test_the_files_whose_length_is_known_are_there() -> None:
    names = {file.name for file in SYSTEM.parent.rglob("test_*.py")}
    assert names >= LONG.keys() | WAITING.keys()


def test_the_quick_tier_has_every_file_but_those_of_the_system_tier() -> None:
    # A test file outside of the packages would never run.
    tests = SYSTEM.parent
    files = {tests.parent / file for file in find_quick_files()}
    assert files == {file for file in tests.rglob("test_*.py") if SYSTEM not in file.parents}


def test_the_drills_of_make_test_are_there() -> None:
    test = test_drills.test_the_drill_gets_the_right_rank_and_cause
    file = Path(test_drills.__file__).relative_to(ROOT)
    known = {f"{file}::{test.__name__}[{name}]" for name in names_of_drills("stdlib")}
    assert known >= QUICK


@pytest.mark.parametrize("processors", [1, 2, 3, 16])
def test_every_file_is_in_one_share(processors: int) -> None:
    files = find_quick_files()
    shares = divide(files, [DRILLS], processors)
    assert sorted(file for share in shares for file in share) == sorted([*files, Path(DRILLS)])
    assert all(shares)


def test_a_changed_module_a_table_and_a_test_touch_the_tests_that_import_them() -> None:
    this = Path(__file__).relative_to(ROOT)
    files = find_quick_files()
    assert find_touched([str(this)], files) == [this]
    assert this in find_touched(["tests/import_order.py"], files)
    assert name_of(Path("watchtower/evidence/facts/kernel.toml")) == "watchtower.evidence.facts"
    assert {file.parent for file in find_touched(["README.md"], files)} == {this.parent}
    assert find_touched([], files) == []


def test_every_process_imports_all_files_and_begins_with_others() -> None:
    files = [Path(f"tests/test_{number}.py") for number in range(10)]
    orders = [begin_at(files, part, 4) for part in range(4)]
    assert all(sorted(order) == files for order in orders)
    assert len({order[0] for order in orders}) == 4
    assert begin_at([], 3, 4) == []


def test_the_files_of_the_command_line_are_found(pytestconfig: pytest.Config) -> None:
    assert Path(__file__) in find_files(pytestconfig)
