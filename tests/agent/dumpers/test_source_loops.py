"""Which frames have lines of their own to look up, and which files may be read for a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.dumpers import source_child
from agent.dumpers.source_loops import has_own_lines
from agent.dumpers.user_files import READ, SEARCH, FileRights, parse_rights
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


@pytest.mark.parametrize(
    "path",
    ["/proc/filesystems", "/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"],
)
def test_a_file_of_the_kernel_is_not_read(path: str) -> None:
    if not Path(path).is_file():
        pytest.skip(f"{path} does not exist here")
    with pytest.raises(source_child.NotReadable):
        source_child.read_source("/proc/self", path)


def test_a_file_of_the_process_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for x in y:\n    f()\n")
    assert source_child.read_source("/proc/self", str(tmp_path / "train.py"))[0].startswith("for")


USER = FileRights(user=1000, groups=frozenset({100, 2000}))


def a_file(mode: int, user: int, group: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, user, group, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "user", "group", "may"),
    [
        (0o400, 1000, 0, True),
        (0o044, 1000, 100, False),
        (0o040, 0, 100, True),
        (0o040, 0, 2000, True),
        (0o604, 0, 100, False),
        (0o604, 0, 0, True),
        (0o640, 0, 0, False),
        (0o600, 0, 0, False),
    ],
)
def test_a_file_is_read_only_if_its_mode_lets_the_process(
    mode: int, user: int, group: int, may: bool
) -> None:
    assert USER.has(a_file(mode, user, group), READ) is may
    assert USER.has(a_file(mode >> 2, user, group), SEARCH) is may
    assert FileRights(user=0, groups=frozenset(), is_root=True).has(a_file(mode, user, group), READ)


def test_the_rights_of_a_process_are_those_of_its_real_user() -> None:
    def parsed(uid: str, capabilities: str) -> FileRights:
        status = (
            f"Name:\tx\nUid:\t{uid}\nGid:\t100\t0\t0\t0\nGroups:\t2000 \nCapEff:\t{capabilities}\n"
        )
        return parse_rights(status.encode())

    assert parsed("1000\t0\t0\t0", "000001ffffffffff") == USER
    assert parsed("0\t0\t0\t0", "00000000a80425fb").is_root
    assert not parsed("0\t0\t0\t0", "0000000000000000").is_root
    with pytest.raises(ValueError, match="Uid"):
        parse_rights(b"")
