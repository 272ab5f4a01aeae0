"""Which frames have lines of their own to look up."""

from __future__ import annotations

from agent.dumpers.source_loops import has_own_lines
from watchtower.wire.stacks import Frame


def test_library_code_and_lines_within_another_function_are_not_looked_up() -> None:
    def looked_up(**more: object) -> bool:
        fields = {"function": "f", "file": "/home/ada/train.py", "line": 4, **more}
        return has_own_lines(Frame(**fields))  # type: ignore[arg-type]

    assert looked_up()
    assert looked_up(function="Trainer.fit.<locals>.step")
    assert not looked_up(library=True)
    assert not looked_up(function="f.<locals>.<listcomp>")
    assert not looked_up(function="<lambda>")
    assert not looked_up(line=0)
    assert not looked_up(file="train.py")
    assert not looked_up(file="<string>")
