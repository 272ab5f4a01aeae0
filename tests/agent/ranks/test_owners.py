"""Whose a process is: by the kernel, and by folders that only root can have made."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.procfs import Proc
from agent.ranks import owners
from agent.ranks.owners import UNKNOWN_POD, Owners, find_pod

POD = "0b6d4c1e-8f0a-4d53-9f1e-3a52f1b0c7aa"
SLICE = POD.replace("-", "_")
BY_SYSTEMD = (
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice"
    f"/cri-containerd-{'a' * 64}.scope"
)
BY_FILES = f"/kubepods/besteffort/pod{POD}/{'a' * 64}"


class Machine:
    """A root with one process, pid 7, and folders of which some belong to a user."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0
        self.of_user: set[Path] = set()
        (root / "proc/7").mkdir(parents=True)
        self.owners = Owners(Proc(str(root)), lambda: self.now, is_of_root=self._is_of_root)

    def process(self, uid: int, cgroup: str = "0::/") -> None:
        (self.root / "proc/7/status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (self.root / "proc/7/cgroup").write_text(f"{cgroup}\n")

    def cgroup(self, path: str, mount: str = "") -> Path:
        folder = self.root / "sys/fs/cgroup" / mount / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def pod(self, name: str) -> Path:
        folder = self.root / "var/log/pods" / name
        folder.mkdir(parents=True)
        return folder

    def give_to_user(self, folder: Path) -> None:
        self.of_user.add(folder)

    def _is_of_root(self, path: str) -> bool:
        return (
            Path(path).is_dir() and not Path(path).is_symlink() and Path(path) not in self.of_user
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_process_belongs_to_its_user(machine: Machine) -> None:
    machine.process(1000)
    assert machine.owners.find(7) == "uid:1000"


def test_a_process_that_is_gone_belongs_to_nobody(machine: Machine) -> None:
    assert machine.owners.find(7) == ""


@pytest.mark.parametrize(
    "path",
    ["/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "/slurm/uid_0/job_7/step_0"],
)
def test_a_slurm_job_is_its_user_s_whatever_its_path_says(machine: Machine, path: str) -> None:
    machine.process(1000, f"0::{path}")
    machine.cgroup(path)
    assert machine.owners.find(7) == "uid:1000"


@pytest.mark.parametrize("path", [BY_SYSTEMD, BY_FILES])
@pytest.mark.parametrize(
    ("line", "mount"),
    [("0::", ""), ("0::", "unified"), ("4:memory:", "memory"), ("1:name=systemd:", "systemd")],
)
def test_a_pod_s_process_belongs_to_the_pod_s_namespace(
    machine: Machine, path: str, line: str, mount: str
) -> None:
    machine.process(0, f"{line}{path}")
    machine.cgroup(path, mount)
    machine.pod(f"team-a_llama-0_{POD}")
    assert machine.owners.find(7) == "namespace:team-a"
    assert machine.owners.trouble() == ""


def test_a_pod_from_a_file_on_the_node_has_a_namespace(machine: Machine) -> None:
    digits = "0123456789abcdef" * 2
    machine.process(0, f"0::/kubepods/burstable/pod{digits}/c")
    machine.cgroup(f"/kubepods/burstable/pod{digits}")
    machine.pod(f"kube-system_proxy-n1_{digits}")
    assert machine.owners.find(7) == "namespace:kube-system"


FORGED = [
    f"/user.slice/user-1000.slice/user@1000.service{BY_SYSTEMD}",
    f"/user.slice/user-1000.slice/user@1000.service/app.slice{BY_FILES}",
    f"/docker/{'b' * 64}{BY_FILES}",
    f"/system.slice/docker-{'b' * 64}.scope{BY_SYSTEMD}",
    f"/kubepods/besteffort/podnothing/{BY_FILES}",
    f"/kubepods/a/b/c/pod{POD}",
    f"/Kubepods/pod{POD}",
    f"/kubepods-pod{SLICE}.slice",
]


@pytest.mark.parametrize("path", FORGED)
def test_a_forged_nested_path_does_not_count(machine: Machine, path: str) -> None:
    machine.process(1000, f"0::{path}")
    machine.cgroup(path)
    machine.pod(f"victim_llama-0_{POD}")
    assert machine.owners.find(7) == "uid:1000"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_folder_that_a_user_owns_ends_what_counts(machine: Machine, depth: int) -> None:
    machine.process(1000, f"0::{BY_SYSTEMD}")
    machine.cgroup(BY_SYSTEMD)
    machine.give_to_user(machine.cgroup("/".join(BY_SYSTEMD.split("/")[: depth + 1])))
    machine.pod(f"victim_llama-0_{POD}")
    assert machine.owners.find(7) == "uid:1000"


def test_what_is_below_the_pod_s_folder_may_be_the_container_s(machine: Machine) -> None:
    machine.process(1000, f"0::{BY_SYSTEMD}/mine/kubepods/pod{'0' * 32}")
    machine.give_to_user(machine.cgroup(BY_SYSTEMD))
    machine.pod(f"team-a_llama-0_{POD}")
    assert machine.owners.find(7) == "namespace:team-a"


@pytest.mark.parametrize("name", [f"victim_x_{POD}", f"Bad!_x_{POD}", f"x_{POD}", f"a_b_c_{POD}"])
def test_a_namespace_comes_only_from_kubelet_s_own_folders(machine: Machine, name: str) -> None:
    machine.process(1000, f"0::{BY_FILES}")
    machine.cgroup(BY_FILES)
    machine.give_to_user(machine.pod(name))
    assert machine.owners.find(7) == "uid:1000"
    assert machine.owners.trouble() == UNKNOWN_POD
    machine.owners.forget(7)
    assert machine.owners.trouble() == ""


def test_a_pod_seen_from_another_cgroup_namespace_is_said(machine: Machine) -> None:
    machine.process(0, f"0::/../../kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/c")
    machine.pod(f"team-a_llama-0_{POD}")
    assert machine.owners.find(7) == "uid:0"
    assert machine.owners.trouble() == UNKNOWN_POD


def test_the_folder_of_logs_is_read_for_a_new_pod_and_seldom(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.process(0, f"0::{BY_FILES}")
    machine.cgroup(BY_FILES)
    machine.pod(f"team-b_other_{'1' * 32}")
    assert machine.owners.find(7) == "uid:0"
    machine.pod(f"team-a_llama-0_{POD}")
    assert machine.owners.find(7) == "uid:0"
    machine.now += 1.0
    assert machine.owners.find(7) == "namespace:team-a"
    monkeypatch.setattr(owners.os, "scandir", None)
    assert machine.owners.find(7) == "namespace:team-a"


@pytest.mark.parametrize("path", ["/", "", "//", "/kubepods", "/kubepods/", "/kubepods/besteffort"])
def test_a_path_without_a_pod_has_none(path: str) -> None:
    assert find_pod(path) == ((), "")


def test_folders_and_links_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "file").touch()
    assert owners.is_folder_of_root("/")
    assert not owners.is_folder_of_root(str(tmp_path / "link"))
    assert not owners.is_folder_of_root(str(tmp_path / "file"))
    assert not owners.is_folder_of_root(str(tmp_path / "missing"))
