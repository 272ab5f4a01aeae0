"""System calls and addresses as the kernel writes them, by value and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.dumpers.kernel_state import (
    load_system_calls,
    parse_address,
    parse_syscall,
    read_kernel_wait,
)
from agent.procfs import Proc
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState


def test_a_process_that_is_gone_is_gone() -> None:
    assert read_kernel_wait(Proc(), 2**22 + 1) == KernelWait(state=ProcessState.GONE)


X86 = load_system_calls("x86_64")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"0 0x3 0x7ffd 0x10 0x0 0x0 0x0 0x7ffd 0x7f00\n", ("read", 3)),
        (b"202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n", ("futex", -1)),
        (b"45 0xffffffff00000005 0x0\n", ("recvfrom", 5)),
        (b"0 0xffffffffffffffff 0x0\n", ("read", -1)),
        (b"running\n", ("", -1)),
        (b"-1 0x7ffd 0x7f00\n", ("", -1)),
        (b"9999 0x1 0x2\n", ("syscall_9999", -1)),
        (b"", ("", -1)),
    ],
)
def test_a_system_call_is_parsed(raw: bytes, expected: tuple[str, int]) -> None:
    assert parse_syscall(raw, X86) == expected


def test_numbers_differ_between_machines() -> None:
    assert load_system_calls("aarch64").name(63) == "read"
    assert load_system_calls("arm64").name(98) == "futex"
    assert load_system_calls("s390x").name(3) == "syscall_3"


@given(st.binary(max_size=60))
def test_any_bytes_give_a_system_call_or_none(raw: bytes) -> None:
    parse_syscall(raw, X86)


def test_addresses_are_parsed_as_the_kernel_writes_them() -> None:
    assert parse_address("0100007F:1F90") == "127.0.0.1:8080"
    assert parse_address("0000000000000000FFFF00000100007F:0050") == "127.0.0.1:80"
    assert parse_address("00000000000000000000000001000000:0050") == "[::1]:80"
    with pytest.raises(ValueError, match="invalid address"):
        parse_address("0100:1")
