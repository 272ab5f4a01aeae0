"""What the test suite says of itself."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import TOGETHER

ROOT = Path(__file__).parents[2]


def test_the_files_that_one_process_runs_are_there() -> None:
    assert [file for file in TOGETHER if not (ROOT / file).is_file()] == []
