"""Pages that are not the process's own, or that may hang, are not opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.procfs import Proc
from agent.ranks.pages import find_page


def a_fake_process(tmp_path: Path, kind: str) -> Proc:
    """A process whose page lies on a file system of some kind."""
    page = tmp_path / "watchtower-heartbeat.1"
    page.write_bytes(b"x")
    (tmp_path / "proc/7/fd").mkdir(parents=True)
    (tmp_path / "proc/7/fdinfo").mkdir()
    (tmp_path / "proc/7/fd/3").symlink_to(page)
    (tmp_path / "proc/7/fdinfo/3").write_text("pos:\t0\nflags:\t02\nmnt_id:\t36\n")
    lines = f"35 1 98:0 / / rw - ext4 /dev/sda rw\n36 35 0:1 / /mnt rw master:1 - {kind} - rw\n"
    (tmp_path / "proc/7/mountinfo").write_text(lines)
    return Proc(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "opened"),
    [
        ("tmpfs", 1),
        ("ext4", 1),
        ("nfs4", 0),
        ("fuse.sshfs", 0),
        ("lustre", 0),
        ("-", 0),
        ("overlay", 0),  # of a mount namespace whose owner is not known
    ],
)
def test_a_page_on_a_file_system_that_may_hang_is_not_even_opened(
    tmp_path: Path, kind: str, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = a_fake_process(tmp_path, kind)
    paths: list[str] = []
    really = os.open

    def count(path: str, flags: int, mode: int = 0o777) -> int:
        paths.append(path)
        return really(path, flags, mode)

    monkeypatch.setattr("agent.ranks.pages.os.open", count)
    assert find_page(proc, 7, 1).page is None
    assert sum("/fd/3" in path for path in paths) == opened
