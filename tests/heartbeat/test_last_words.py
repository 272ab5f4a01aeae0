"""Last words: names, messages and exit codes, by value."""

from __future__ import annotations

import pytest
from watchtower_heartbeat.endings import describe, exit_code_of, first_line, type_name


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_a_message_that_cannot_be_had_is_left_out() -> None:
    assert first_line(Silent()) == ""
    assert first_line(ValueError()) == ""
    assert first_line(ValueError("\n\n  CUDA error\nmore")) == "CUDA error"


def test_a_type_is_named_as_people_import_it() -> None:
    assert type_name(KeyError) == "KeyError"
    assert type_name(Silent).endswith(".Silent")


@pytest.mark.parametrize(
    ("code", "seen"), [(None, 0), (0, 0), (3, 3), (256, 0), (-1, 255), ("x", 1)]
)
def test_an_exit_code_is_the_one_the_shell_sees(code: object, seen: int) -> None:
    assert exit_code_of(code) == seen
    assert describe(SystemExit(code))["exit_code"] == seen
