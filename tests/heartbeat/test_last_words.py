"""Last words: names, messages and exit codes, by value."""

from __future__ import annotations

import pytest
from watchtower_heartbeat.own_page import ROOM, choose_lines, describe, exit_code_of, type_name


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


NCCL = """\
NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled system error \
(run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
Error: failed to extend /dev/shm/nccl-X to 33030532 bytes, error: No space left on device (28)"""


def test_a_message_that_cannot_be_had_is_left_out() -> None:
    assert choose_lines(Silent()) == ""
    assert choose_lines(ValueError()) == ""
    assert choose_lines(ValueError("\n\n  CUDA error")) == "CUDA error"


def test_all_lines_of_an_nccl_error_fit() -> None:
    assert choose_lines(RuntimeError(f"{NCCL} \n")) == NCCL


def test_a_stack_of_cpp_behind_a_message_is_left_out() -> None:
    frames = "\n".join(f"frame #{number}: c10::Error::Error in libc10.so" for number in range(40))
    stack = f"Exception raised from checkForNCCLErrors at ProcessGroupNCCL.cpp:9\n{frames}"
    assert choose_lines(RuntimeError(f"{NCCL}\n{stack}\n")) == NCCL
    assert choose_lines(RuntimeError(f"{NCCL}\n{frames}\n")) == NCCL
    assert choose_lines(RuntimeError("frame #3 is late\nretry")) == "frame #3 is late\nretry"


def test_of_a_long_message_the_first_and_the_last_line_are_kept() -> None:
    frames = "\n".join(f"frame {number} in /usr/lib/libtorch.so" for number in range(99))
    lines = choose_lines(RuntimeError(f"first\n\n{frames}\nlast\n")).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("first", "frame 0 in /usr/lib/libtorch.so", "last")


@pytest.mark.parametrize("word", ["x", "é\n", "\N{GRINNING FACE}\n", "line\n", "x" * 300 + "\n"])
def test_lines_of_a_long_message_fit_into_the_heartbeat_file(word: str) -> None:
    lines = choose_lines(ValueError(f"begin\n{word * 100_000}\nend"))
    assert lines.endswith("\nend")
    assert len(lines.encode()) <= ROOM


def test_a_type_is_named_as_people_import_it() -> None:
    assert type_name(KeyError) == "KeyError"
    assert type_name(Silent).endswith(".Silent")


@pytest.mark.parametrize(
    ("code", "seen"), [(None, 0), (0, 0), (3, 3), (256, 0), (-1, 255), ("x", 1)]
)
def test_an_exit_code_is_the_one_the_shell_sees(code: object, seen: int) -> None:
    assert exit_code_of(code) == seen
    assert describe(SystemExit(code))["exit_code"] == seen
