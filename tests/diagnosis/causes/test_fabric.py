"""fabric_fault: all ranks wait, and a link of the job's nodes failed around the stall."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_HIDDEN_WAIT,
    IN_TORCH_INIT,
    POLLS,
    a_case,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import answer_of_case
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.wire.observations import Observation

LOST = ("network", "nic:eth1", "nic_link_lost", "eth1 lost its link and does not have it now")
DOWN = ("kernel_log", "nic:eth2", "nic_link_down", "mlx5_core 0000:5e:00.0 eth2: Link down")
PORT = ("infiniband", "nic:mlx5_0", "nic_link_lost", "mlx5_0 is no longer active")
FAR = (
    "infiniband",
    "nic:mlx5_0",
    "nic_far_end.local_ack_timeout_err",
    "mlx5_0 had 4 local_ack_timeout_err a second",
)
SLOW_PORT = ("infiniband", "nic:mlx5_3", "nic_rate", "mlx5_3 runs at 100 Gbit/s, the other")
MANAGER = ("fabric_manager", "node", "fabric_manager", "the fabric manager does not run")
NOT_READY = (
    "nvml",
    "node",
    "fabric_not_ready",
    "the NVLink fabric of 8 of its 8 GPUs is not set up",
)
ERRORS = ("network", "nic:eth1", "nic_errors", "eth1 had 31 damaged or unsent frames a second")
SXID = ("kernel_log", "pci:0000:c2:00", "sxid.20034", "SXid (PCI:0000:c2:00.0): 20034, Fatal, Link")
MILD = (*SXID[:3], "SXid (PCI:0000:c2:00.0): 12028, Non-fatal, Link 44")
NVLINK = ("nvml", "pci:0000:3b:00", "gpu_errors.nvlink_replay", "7 replays of NVLink since the")
NVLINK_LOST = ("nvml", "pci:0000:3b:00", "gpu_nvlink_lost", "6 of its 18 NVLinks were lost")
MEMORY = ("nvml", "pci:0000:3b:00", "gpu_errors.ecc_uncorrected", "7 errors of its memory")


def seen(what, age_s=12.0, **values) -> Observation:
    source, subject, name, text = what
    return Observation(source=source, subject=subject, name=name, age_s=age_s, text=text, **values)


def observed(*observations, built=None, stalled_for_s=10.0):
    case = a_case(built or ranks_in(8, IN_ALL_REDUCE), stalled_for_s=stalled_for_s)
    first, *rest = case.nodes
    return replace(case, nodes=(first, *rest[:-1], replace(rest[-1], observations=observations)))


@pytest.mark.parametrize(
    ("what", "domain"),
    [(LOST, "network"), (PORT, "network"), (DOWN, "network"), (SXID, "gpu"), (NVLINK_LOST, "gpu")],
)
def test_a_link_that_failed_is_named_with_its_node_and_no_rank_is_blamed(what, domain):
    case = observed(seen(what))
    diagnosis = diagnose(case)
    assert (diagnosis.cause.value, diagnosis.suspects, diagnosis.domain.value) == (
        "fabric_fault",
        (),
        domain,
    )
    assert diagnosis.confidence > 0.8
    node = case.nodes[-1].node
    assert f"{node}, 12 s ago: " in diagnosis.summary
    assert f"{what[3]}." in diagnosis.summary
    assert diagnosis.summary.count(what[1].partition(":")[2]) == 1  # the device, or the link
    assert node in diagnosis.next_steps[0]
    assert sum(what[3] in each.text for each in diagnosis.evidence) == 1


def test_hosts_that_wait_for_their_devices_wait_for_the_link_too():
    """Their collectives are queued, so no stack shows one."""
    values = {"native": POLLS, "cpu": 1.0, "state": "R", "syscall": "", "active": True}
    hosts = ranks_in(8, IN_HIDDEN_WAIT, **values)
    assert answer_of_case(observed(built=hosts))[1] == []
    assert answer_of_case(observed(seen(LOST), built=hosts)) == ("fabric_fault", [])
    spins = seen(
        ("nvml", "pci:0000:3b:00", "gpu_pattern.spinning", ""), 1.0, pid=hosts[7].evidence.pid
    )
    works = replace(spins, name="gpu_pattern.working")
    assert answer_of_case(observed(seen(LOST), spins, built=hosts))[0] == "fabric_fault"
    assert answer_of_case(observed(seen(LOST), works, built=hosts))[0] != "fabric_fault"


@pytest.mark.parametrize("what", [ERRORS, NVLINK])
def test_errors_without_a_lost_link_are_less_certain(what):
    diagnosis = diagnose(observed(seen(what)))
    assert (diagnosis.cause.value, diagnosis.confidence) == ("fabric_fault", 0.7)
    assert "link_errors_alone" in [doubt.kind for doubt in diagnosis.doubts]


def test_an_error_that_stops_no_link_explains_nothing():
    assert answer_of_case(observed(seen(MILD))) == ("symmetric_hang", [])


def test_errors_of_memory_of_an_unknown_rank_separate_the_ranks_of_their_node():
    diagnosis = diagnose(observed(seen(MEMORY)))
    assert (diagnosis.cause.value, diagnosis.alternatives[0].suspects) == ("unknown", (4, 5, 6, 7))


def test_a_link_that_failed_long_before_explains_nothing():
    assert answer_of_case(observed(seen(LOST, 69.0)))[0] == "fabric_fault"
    assert answer_of_case(observed(seen(LOST, 71.0)))[0] == "symmetric_hang"


def test_a_rank_that_does_not_wait_is_the_reason_whatever_the_links_are():
    built = with_rank(ranks_in(8, IN_ALL_REDUCE), a_rank(5, FETCHING, syscall="nanosleep"))
    diagnosis = diagnose(observed(seen(LOST), built=built))
    assert (diagnosis.cause.value, [each.rank for each in diagnosis.suspects]) == (
        "dataloader_stall",
        [5],
    )
    assert any("lost its link" in each.text for each in diagnosis.evidence)


def test_lost_links_come_before_errors_and_the_earliest_first():
    other = replace(seen(LOST, 9.0), subject="nic:eth3")
    found = take_picture(observed(seen(ERRORS, 30.0), seen(DOWN, 5.0), other)).blamed
    assert [each.device for each in found] == ["eth3", "eth2", "eth1"]


def of_gpus(case, patterns, *observations):
    """Return the case with the GPU of each rank, and with more observations of each node."""
    nodes = []
    for node in case.nodes:
        pids = [each.pid for each in case.ranks if each.node == node.node]
        gpus = [
            seen(("nvml", f"pci:0000:{index}b:00", f"gpu_pattern.{pattern}", ""), 1.0, pid=pid)
            for index, (pid, pattern) in enumerate(zip(pids, patterns, strict=False))
        ]
        nodes.append(replace(node, observations=(*gpus, *node.observations, *observations)))
    return replace(case, nodes=tuple(nodes))


POLLING = ranks_in(8, IN_HIDDEN_WAIT, native=POLLS, cpu=1.0, state="R", syscall="", active=True)
FOREIGN = ("nvml", "pci:0000:7b:00", "gpu_nvlink_lost", "18 of its 18 NVLinks were lost")
FOREIGN_ERRORS = (*FOREIGN[:2], *NVLINK[2:])


@pytest.mark.parametrize("what", [FOREIGN, FOREIGN_ERRORS])
@pytest.mark.parametrize("pid", [999_999, None])
def test_nvlinks_of_a_gpu_of_another_job_explain_nothing(what, pid):
    """Without a process it is not a GPU of the job either: a GPU of each rank is known."""
    case = of_gpus(a_case(POLLING, stalled_for_s=10.0), ["spinning"] * 8, seen(what, pid=pid))
    assert answer_of_case(case)[0] != "fabric_fault"
    assert answer_of_case(observed(seen(what, pid=999_999))) == ("symmetric_hang", [])


def test_nvlinks_of_a_gpu_of_the_job_leave_no_doubt_and_others_do():
    pid = ranks_in(8, IN_ALL_REDUCE)[7].evidence.pid
    known, unknown = (diagnose(observed(seen(NVLINK_LOST, pid=each))) for each in (pid, None))
    assert "link_may_be_unused" not in [doubt.kind for doubt in known.doubts]
    assert known.confidence > unknown.confidence
    assert "link_may_be_unused" in [doubt.kind for doubt in unknown.doubts]


@pytest.mark.parametrize("what", [LOST, NVLINK_LOST, SXID])
@pytest.mark.parametrize("count", [1, 8])
def test_a_lost_link_explains_a_hang_also_if_counters_of_gpus_are_frozen(what, count):
    """Frozen counters show nothing about the work of a GPU, so they do not refute the link."""
    patterns = ["frozen"] * count + ["spinning"] * (8 - count)
    case = observed(seen(what), built=POLLING)
    assert answer_of_case(of_gpus(case, patterns)) == ("fabric_fault", [])


def test_requests_without_an_answer_point_to_the_far_end():
    diagnosis = diagnose(observed(seen(FAR)))
    assert (diagnosis.cause.value, diagnosis.suspects, diagnosis.confidence) == (
        "fabric_fault",
        (),
        0.7,
    )
    assert "at its other end" in diagnosis.summary
    assert "rather at the other end than on" in diagnosis.next_steps[0]


def test_a_port_that_went_down_comes_before_the_ports_that_get_no_answer():
    case = observed(seen(FAR))
    first, *rest = case.nodes
    case = replace(case, nodes=(replace(first, observations=(seen(PORT),)), *rest))
    assert f"{first.node}, 12 s ago: mlx5_0 is no longer active" in diagnose(case).summary


@pytest.mark.parametrize(
    "what", [seen(SLOW_PORT), seen(PORT, 300.0), seen(FAR, 300.0)], ids=["slow", "old", "old far"]
)
def test_a_slow_port_and_old_faults_of_a_port_name_nothing(what):
    assert answer_of_case(observed(what))[0] == "symmetric_hang"


DAYS = 200_000.0


@pytest.mark.parametrize("what", [MANAGER, NOT_READY])
def test_a_fabric_that_is_not_set_up_is_the_reason_if_all_ranks_wait_in_set_up(what):
    in_set_up = ranks_in(8, IN_TORCH_INIT, step=None)
    case = observed(seen(what, DAYS), built=in_set_up)
    diagnosis = diagnose(case)
    assert (diagnosis.cause.value, diagnosis.suspects, diagnosis.domain.value) == (
        "fabric_fault",
        (),
        "gpu",
    )
    assert case.nodes[-1].node in diagnosis.summary
    assert "systemctl status nvidia-fabricmanager" in diagnosis.next_steps[0]


@pytest.mark.parametrize("what", [MANAGER, NOT_READY])
def test_a_fabric_with_which_the_job_made_steps_is_innocent(what):
    assert answer_of_case(observed(seen(what, DAYS)))[0] == "symmetric_hang"


@pytest.mark.parametrize("what", [MANAGER, NOT_READY])
def test_a_fabric_is_not_the_reason_while_a_rank_is_elsewhere(what):
    in_set_up = ranks_in(8, IN_TORCH_INIT, step=None)
    case = observed(seen(what, DAYS), built=with_rank(in_set_up, a_rank(3, FETCHING, step=None)))
    assert answer_of_case(case)[0] != "fabric_fault"
