"""What the checks of the doctor make of what was read: each fault, and its healthy sibling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.collectors.gpu.metrics import INFO, NVLINKS
from agent.collectors.infiniband import RATE, Port
from agent.collectors.infiniband import UP as PORT_UP
from agent.collectors.network import MTU, UP
from agent.doctor.active_tests import list_tests
from agent.doctor.check import Finding, Seen
from agent.doctor.command import summarize
from agent.doctor.devices import (
    BOOT_GRACE_S,
    judge_fabric,
    judge_gpus,
    judge_kernel,
    judge_nvlinks,
    judge_pcie,
)
from agent.doctor.examining import NAME, find_stuck, name_thread
from agent.doctor.host import (
    Limits,
    Mounted,
    Room,
    judge_clock,
    judge_limits,
    judge_mounts,
    judge_shm,
)
from agent.doctor.network import Ports, Rdma, judge_mtu, judge_rdma
from agent.doctor.table import CHECKS
from watchtower.service.metric_spec import Sample
from watchtower.wire.checks import CheckResult, CheckState, find_worst, sort_results
from watchtower.wire.observations import Observation

GPU = "pci:0000:3a:00"
OK, WARN, FAIL = CheckState.OK, CheckState.WARN, CheckState.FAIL


def observed(name: str, subject: str = GPU, text: str = "", source: str = "nvml") -> Observation:
    return Observation(source=source, subject=subject, name=name, age_s=1.0, text=text)


def states(found: list[Finding] | object) -> list[CheckState]:
    return [each.state for each in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "judge", "state"),
    [
        ("gpus_missing", judge_gpus, FAIL),
        ("gpu_lost", judge_gpus, FAIL),
        ("gpu_remap.failed", judge_gpus, FAIL),
        ("gpu_remap.pending", judge_gpus, WARN),
        ("gpu_errors.ecc_uncorrected", judge_gpus, FAIL),
        ("gpu_orphan", judge_gpus, WARN),
        ("gpu_errors.ecc_corrected", judge_gpus, OK),
        ("gpu_pattern.spinning", judge_gpus, OK),
        ("gpu_pcie_width", judge_pcie, WARN),
        ("gpu_errors.pcie_replays", judge_pcie, OK),
        ("xid.79", judge_kernel, FAIL),
        ("xid.13", judge_kernel, OK),
        ("xid.43", judge_kernel, OK),
        ("sxid.12028", judge_kernel, FAIL),
        ("oom_kill", judge_kernel, OK),
        ("gpu_fabric", judge_fabric, FAIL),
        ("fabric_manager", judge_fabric, FAIL),
        ("gpu_nvlink_lost", judge_nvlinks, FAIL),
    ],
)
def test_what_collectors_observe_is_judged(name, judge, state) -> None:
    assert states(judge(Seen(observations=(observed(name, text="it is so"),))))[0] is state
    assert states(judge(Seen())) == [OK]


def test_each_fault_has_a_fix_and_one_text_is_said_once() -> None:
    twice = (observed("gpu_orphan", text="pid 7"), observed("gpu_orphan", text="pid 7"))
    (found,) = judge_gpus(Seen(observations=twice))
    assert found.text == "GPU 0000:3a:00: pid 7"
    assert found.fix


def test_a_driver_that_does_not_answer_fails_and_one_that_is_absent_does_not() -> None:
    gap = "GPUs: nvmlInit of the driver has not returned for 4 s"
    assert states(judge_gpus(Seen(gaps={"nvml": gap}))) == [FAIL]
    assert states(judge_gpus(Seen(gaps={"nvml": ""}, absent=frozenset({"nvml"})))) == [OK]


def test_a_fabric_that_is_set_up_after_a_boot_is_a_warning_for_a_while() -> None:
    seen = Seen(observations=(observed("gpu_fabric", text="is being set up"),))
    assert states(judge_fabric(replace(seen, uptime_s=BOOT_GRACE_S - 1))) == [WARN]
    assert states(judge_fabric(replace(seen, uptime_s=BOOT_GRACE_S))) == [FAIL]


def links(**up: int) -> Seen:
    return Seen(samples=tuple(Sample(NVLINKS, (gpu, "up"), n) for gpu, n in up.items()))


def test_the_gpu_with_fewer_links_than_the_others_is_named() -> None:
    assert states(judge_nvlinks(links(a=18, b=16, c=18))) == [FAIL]
    assert states(judge_nvlinks(links(a=18, b=18))) == [OK]
    assert states(judge_nvlinks(links(a=0, b=0))) == [OK]  # cards without a bridge


ACTIVE = Port(is_active=True, gbps=400.0, counts={"symbol_error": 9}, received=0, sent=0)
UP_PORT = Rdma(now=ACTIVE, before=ACTIVE, state="ACTIVE", link="Ethernet", interfaces=("eth1",))
IDLE = replace(ACTIVE, is_active=False)
DOWN_PORT = Rdma(now=IDLE, before=IDLE, state="DOWN")


def ports(**ports: Rdma) -> Ports:
    return Ports(ports={"a": UP_PORT, "b": UP_PORT} | ports)


@pytest.mark.parametrize(
    ("port", "state"),
    [
        (UP_PORT, OK),
        (DOWN_PORT, WARN),
        (replace(DOWN_PORT, state="INIT"), FAIL),
        (replace(UP_PORT, has_file=False), FAIL),
        (replace(UP_PORT, now=replace(ACTIVE, gbps=200.0)), WARN),
        (replace(UP_PORT, now=replace(ACTIVE, counts={"symbol_error": 900})), WARN),
        (replace(UP_PORT, now=replace(ACTIVE, counts={"symbol_error": 12})), OK),
    ],
)
def test_a_port_is_judged_by_its_state_its_siblings_and_its_growing_errors(port, state) -> None:
    assert states(judge_rdma(ports(c=port))) == [state]


def test_ports_without_a_cable_are_ordinary_but_not_all_of_them() -> None:
    two_of_three = Ports(ports={"a": UP_PORT, "b": DOWN_PORT, "c": DOWN_PORT})
    assert states(judge_rdma(two_of_three)) == [OK]
    assert states(judge_rdma(Ports(ports={"a": DOWN_PORT}))) == [FAIL]
    assert states(judge_rdma(Ports(ports={"a": replace(DOWN_PORT, state="INIT")}))) == [FAIL]
    assert states(judge_rdma(Ports())) == [OK]


def test_gpudirect_needs_a_module_or_dma_buf() -> None:
    assert states(judge_rdma(replace(ports(), has_gpus=True))) == [WARN]
    assert states(judge_rdma(replace(ports(), has_gpus=True, has_peermem=True))) == [OK]


def mtus(**values: int) -> Seen:
    samples = [Sample(MTU, (name,), mtu) for name, mtu in values.items()]
    return Seen(samples=(*samples, *(Sample(UP, (name,), 1.0) for name in values)))


def test_the_odd_mtu_among_interfaces_of_roce_fails_and_a_small_one_warns() -> None:
    both = Ports(ports={"a": UP_PORT, "b": replace(UP_PORT, interfaces=("eth2",))})
    assert states(judge_mtu((mtus(eth0=1500, eth1=9000, eth2=9000), both))) == [OK]
    assert states(judge_mtu((mtus(eth1=9000, eth2=1500), both))) == [FAIL]
    assert states(judge_mtu((mtus(eth1=1500, eth2=1500), both))) == [WARN, WARN]
    assert states(judge_mtu((mtus(eth0=1500), Ports()))) == [OK]


def test_shared_memory_is_judged_by_size_and_use() -> None:
    assert states(judge_shm(Room(64 << 20, 0.0))) == [FAIL]
    assert states(judge_shm(Room(1 << 36, 0.96))) == [FAIL]
    assert states(judge_shm(Room(1 << 36, 0.9))) == [OK]
    assert states(judge_shm(None)) == [FAIL]


@pytest.mark.parametrize(
    ("limits", "state"),
    [
        (Limits(memlock=8 << 20, files=1 << 20, has_rdma=True), FAIL),
        (Limits(memlock=8 << 20, files=1 << 20, has_rdma=False), OK),
        (Limits(memlock=-1, files=1 << 20, has_rdma=True), OK),
        (Limits(memlock=-1, files=1024, has_rdma=True), WARN),
        (Limits(memlock=-1, files=-1, has_rdma=True), OK),
    ],
)
def test_limits_matter_to_what_a_job_uses(limits: Limits, state: CheckState) -> None:
    assert states(judge_limits(limits)) == [state]


def test_a_clock_without_a_service_warns() -> None:
    assert states(judge_clock((0x40, 16_000_000))) == [WARN]
    assert states(judge_clock((0x2001, 500))) == [OK]
    assert states(judge_clock((0x2001, 4_000_000))) == [WARN]
    assert states(judge_clock(None)) == [OK]  # a unit with ProtectClock= may not read it


def test_a_file_system_that_does_not_answer_fails_and_a_full_one_warns() -> None:
    good = Mounted("nfs4", "/home", Room(1 << 40, 0.5))
    assert states(judge_mounts([good])) == [OK]
    assert states(judge_mounts([good, Mounted("nfs4", "/data", None, answers=False)])) == [FAIL]
    assert states(judge_mounts([Mounted("ext4", "/", Room(1 << 40, 0.97))])) == [WARN]
    assert states(judge_mounts([Mounted("nfs4", "/private", None)])) == [OK]  # not ours to read
    assert states(judge_mounts(None)) == [OK]


def name_gpus(model: str) -> list[Sample]:
    return [Sample(INFO, (f"g{n}", str(n), "", model, "1"), 1) for n in range(8)]


def test_tests_to_run_are_those_of_the_hardware() -> None:
    gpus = [Sample(INFO, (f"g{n}", str(n), "", "NVIDIA H100 80GB HBM3", "1"), 1) for n in range(8)]
    links = [Sample(NVLINKS, ("g0", "up"), 18)]
    card = [Sample(RATE, ("mlx5_0",), 400.0), Sample(PORT_UP, ("mlx5_0",), 1.0)]
    found = list(list_tests(Seen(samples=(*gpus, *links, *card))))
    assert [each.expect.partition(" GB")[0] for each in found] == [
        "busbw of at least 450",
        "busbw of at least 42",
        "at least 368 Gbit/s",
    ]
    (alone,) = list_tests(Seen(samples=tuple(gpus)))
    assert "no NVLink was seen" in alone.expect
    assert list(list_tests(Seen())) == []
    for other in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA B200"):
        (test,) = list_tests(Seen(samples=(*name_gpus(other), *links)))
        assert test.expect == "busbw of about the same as on other nodes of this kind"


def result(state: CheckState, text: str = "x") -> CheckResult:
    return CheckResult(check="GPUs", state=state, text=text)


def test_the_worst_result_is_the_line_and_comes_first() -> None:
    found = (result(OK), result(WARN, "warns"), result(FAIL, "fails"), result(WARN))
    assert summarize(found) == "FAIL GPUs: fails; 2 more"
    assert summarize((result(OK),)) == "OK nothing is wrong"
    assert [each.state for each in sort_results(found)] == [FAIL, WARN, WARN, OK]
    assert find_worst(found) is FAIL
    assert find_worst(()) is OK


def test_names_of_checks_and_of_their_threads_are_distinct() -> None:
    assert len({name_thread(each.name) for each in CHECKS}) == len(CHECKS)


def make_process(proc: Path, pid: int, state: str, *tasks: str) -> None:
    fields = " ".join(["0"] * 50)
    for number, name in enumerate((NAME, *tasks)):
        task = proc / f"{pid}/task/{pid + number}"
        task.mkdir(parents=True)
        (task / "comm").write_text(f"{name}\n")
    (proc / f"{pid}/stat").write_text(f"{pid} ({NAME}) {state} {fields}")


def test_a_killed_doctor_whose_thread_hangs_is_found_by_its_check_and_a_running_one_is_not(
    tmp_path: Path,
) -> None:
    make_process(tmp_path, 70, "S", "wtdoctor-mounts")
    make_process(tmp_path, 80, "Z", "wtdoctor-clock")
    make_process(tmp_path, 90, "Z")
    assert find_stuck(str(tmp_path)) == {"wtdoctor-clock": 80}
