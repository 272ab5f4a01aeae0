"""CPU limits that stop ranks, in cgroups below a root of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cgroups import MAX_FOLDERS
from agent.collectors.cpu_limit import EVERY_S, CpuLimits
from watchtower.wire.observations import Observation

PID = 7
POD = "kubepods.slice/kubepods-pod1.slice"
STEP = "slurm/uid_1000/job_7/step_0"


class Node:
    """The files of the ranks' cgroups, and the collector that reads them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ranks: list[int] = [PID]
        self.limits = CpuLimits(str(root), lambda: iter(self.ranks))
        self.now = 100.0

    def place(self, *lines: str, pid: int = PID) -> None:
        """Write /proc/PID/cgroup."""
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def write(self, folder: str, **files: str) -> None:
        """Write files of a cgroup; `_` is a dot in a name."""
        path = self.root / "sys/fs/cgroup" / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (path / name.replace("_", ".", 1)).write_text(f"{text}\n")

    def stat(self, folder: str, periods: int, stopped: int) -> None:
        """Write how often a cgroup was stopped."""
        rows = f"usage_usec 5\nnr_periods {periods}\nnr_throttled {stopped}\nthrottled_usec 9"
        self.write(folder, cpu_stat=rows)

    def look(self) -> list[Observation]:
        """Read once more, ten seconds later."""
        self.now += EVERY_S
        return list(self.limits.collect(self.now))

    @property
    def limited(self) -> float:
        (sample,) = self.limits.samples(0.0)
        return sample.value


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def pod(node: Node) -> Node:
    """A rank in a container without a limit, in a pod with one, on cgroup v2."""
    node.place(f"0::/{POD}/container")
    node.write(f"{POD}/container", cpu_max="max 100000")
    node.write(POD, cpu_max="400000 100000")
    node.stat(POD, 1000, 10)
    node.stat(f"{POD}/container", 0, 0)
    assert node.look() == []
    return node


def test_a_rank_that_the_limit_of_its_pod_stops_is_reported(pod: Node):
    pod.stat(POD, 1100, 72)
    (found,) = pod.look()
    assert (found.source, found.subject, found.name) == ("cpu_limit", "pid:7", "cpu_limit")
    assert (found.value, found.pid, found.age_s) == (0.62, PID, 0.0)
    assert found.text == "its CPU limit (4 CPUs) stopped it in 62% of 100 periods"
    assert pod.limited == 1


def test_a_report_between_two_reads_says_how_old_it_is(pod: Node):
    pod.stat(POD, 1100, 72)
    pod.look()
    (found,) = pod.limits.collect(pod.now + 3)
    assert found.age_s == 3


@pytest.mark.parametrize(("periods", "stopped"), [(1100, 34), (1010, 20), (1000, 10), (5, 5)])
def test_few_stops_few_periods_and_a_new_cgroup_of_the_name_are_not_reported(
    pod: Node, periods: int, stopped: int
):
    pod.stat(POD, periods, stopped)
    assert pod.look() == []
    assert pod.limited == 0


def test_a_limit_with_few_periods_does_not_hide_another_one(pod: Node):
    pod.write(f"{POD}/container", cpu_max="50000 100000")
    pod.look()
    pod.stat(f"{POD}/container", 5, 5)
    pod.stat(POD, 1100, 72)
    (found,) = pod.look()
    assert found.value == 0.62


def test_it_ends_with_the_stops_and_with_the_rank(pod: Node):
    pod.stat(POD, 1100, 72)
    assert pod.look()
    pod.stat(POD, 1200, 72)
    assert pod.look() == []
    pod.stat(POD, 1300, 172)
    assert pod.look()
    pod.ranks.clear()
    assert pod.look() == []
    assert pod.limits.is_absent


def test_version_1_has_the_limit_of_the_nearest_folder_that_stops_most(node: Node):
    node.place("5:freezer:/x", f"4:cpu,cpuacct:/{STEP}", "1:name=systemd:/y")
    parent = f"cpu,cpuacct/{STEP}".rpartition("/")[0]
    for folder, quota in ((f"cpu,cpuacct/{STEP}", "150000"), (parent, "-1")):
        node.write(folder, cpu_cfs_quota_us=quota, cpu_cfs_period_us="100000")
        node.stat(folder, 50, 0)
    assert node.look() == []
    node.stat(f"cpu,cpuacct/{STEP}", 100, 50)
    (found,) = node.look()
    assert found.text == "its CPU limit (1.5 CPUs) stopped it in 100% of 50 periods"


@pytest.mark.parametrize(
    "line",
    ["0::/", "0::/../../other", "", "nonsense", "4:cpu:/", "0::/" + "a/" * 20_000],
    ids=["root", "hidden", "empty", "nonsense", "v1_root", "deep"],
)
def test_a_rank_without_a_readable_limit_has_none(node: Node, line: str):
    node.place(line)
    assert (node.look(), node.limits.is_absent, node.limits.gap()) == ([], True, "")


@pytest.mark.parametrize(
    ("limit", "stat"),
    [
        ("max 100000", "nr_periods 9\nnr_throttled 9"),
        ("100000 0", "nr_periods 9\nnr_throttled 9"),
        ("1e5 100000", "nr_periods 9\nnr_throttled 9"),
        ("100000 100000", "nr_periods x\nnr_throttled 9"),
        ("100000 100000", "nr_throttled 9"),
        ("100000 100000", ""),
        ("", ""),
    ],
)
def test_files_in_another_form_are_no_limit(node: Node, limit: str, stat: str):
    node.place("0::/a")
    node.write("a", cpu_max=limit, cpu_stat=stat)
    assert (node.look(), node.limits.can_read) == ([], False)


def test_the_nearest_folders_of_a_deep_cgroup_are_read(node: Node):
    inside = "/".join(f"level{n}" for n in range(2 * MAX_FOLDERS))
    node.place(f"0::/{inside}")
    for folder in (inside, "level0"):
        node.write(folder, cpu_max="100000 100000")
        node.stat(folder, 0, 0)
    node.look()
    node.stat(inside, 100, 60)
    node.stat("level0", 100, 90)
    (found,) = node.look()
    assert found.value == 0.6
