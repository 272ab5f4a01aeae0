"""Which frames have lines of their own to look up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.dumpers.source_loops import has_own_lines
from watchtower.wire.stacks import Frame

PROGRAM = "def f():\n    for x in y:\n        while x:\n            g()\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that is older than any process of its test."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    os.utime(path, (1e9, 1e9))
    return path


def test_library_code_and_lines_within_another_function_are_not_looked_up(source: Path) -> None:
    def looked_up(**more: object) -> bool:
        fields = {"function": "f", "file": str(source), "line": 4, **more}
        return has_own_lines(Frame(**fields))  # type: ignore[arg-type]

    assert looked_up()
    assert looked_up(function="Trainer.fit.<locals>.step")
    assert not looked_up(library=True)
    assert not looked_up(function="f.<locals>.<listcomp>")
    assert not looked_up(function="<lambda>")
    assert not looked_up(line=0)
    assert not looked_up(file="train.py")
    assert not looked_up(file="<string>")
