"""Frozen cgroups of both versions, from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.dumpers.kernel_state import is_frozen
from agent.procfs import Proc


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Proc:
    """A machine with one process, pid 7, and these files under its cgroup mount."""
    (root / "proc/7").mkdir(parents=True)
    (root / "proc/7/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Proc(str(root))


V1 = "9:freezer:/slurm/job_7\n3:cpu,cpuacct:/\n0::/\n"
V2 = "0::/kubepods/pod1/c2\n"
CASES = [
    (V1, {"freezer/slurm/job_7/freezer.state": "FROZEN\n"}, True),
    (V1, {"freezer/slurm/job_7/freezer.state": "THAWED\n"}, False),
    (V2, {"kubepods/pod1/c2/cgroup.events": "populated 1\nfrozen 1\n"}, True),
    (V2, {"kubepods/pod1/c2/cgroup.events": "populated 1\nfrozen 0\n"}, False),
    (V2, {}, False),
    ("", {}, False),
    ("nonsense\n::\n0:\n", {}, False),
]


@pytest.mark.parametrize(("cgroup", "files", "frozen"), CASES)
def test_the_cgroup_says_whether_it_is_frozen(
    tmp_path: Path, cgroup: str, files: dict[str, str], frozen: bool
) -> None:
    assert is_frozen(machine(tmp_path, cgroup, files), 7) is frozen
