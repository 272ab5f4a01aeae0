"""symmetric_hang is said only if no evidence of any kind separates a rank from the others."""

from dataclasses import replace

import pytest

from agent.collectors.gpu.report import ERRORS
from tests.diagnosis.builders import IN_ALL_REDUCE, a_case, a_native, a_rank, ranks_in, with_rank
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.blame import Strength
from watchtower.diagnosis.blame_table import BLAME_NOBODY, ROWS
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.diagnosis.separation import KINDS, ORDINARY_RANKS
from watchtower.service.toml_tables import read_table
from watchtower.wire.observations import NODE, Observation
from watchtower.wire.report import Movement, ProcessState
from watchtower.wire.verdict import Domain

ODD = 5
"""The rank on the second of two nodes that some evidence separates from the others."""

DEVICE = "pci:0000:05:00"
POLLS = a_native("device_wait", library="libnccl.so.2", running=True)
RUNS = {"native": POLLS, "state": "R", "syscall": "", "cpu": 1.0, "active": True}
"""A host that waits for its GPU by polling."""


def seen(name, *, source="nvml", subject=DEVICE, age_s=8.0, value=None, text="what happened"):
    """Return the evidence of an observation about the odd rank, without its pid."""
    return Observation(
        source=source, subject=subject, name=name, age_s=age_s, value=value, text=text
    )


def of_gpu(name, **values):
    return "observation", replace(seen(name, **values), pid=4000 + ODD)


def of_node(name, subject=NODE, **values):
    return "node", seen(name, subject=subject, source="kernel_log", **values)


def of_process(name, **values):
    return of_gpu(name, subject=f"pid:{4000 + ODD}", source="kernel_log", **values)


def patterns(odd, others="spinning"):
    return "patterns", (odd, others)


def a_host(**values):
    return "host", values


EVIDENCE = {
    "GPU driver": [of_gpu("nvml_stuck", age_s=12.0)],
    "watchdog": [a_host(watchdog=a_native("device_wait", run_ns=7, switches=3))],
    "GPU error": [
        of_gpu("xid.79", source="kernel_log"),
        of_gpu("gpu_lost"),
        of_gpu("gpu_reset_required"),
    ],
    "uncorrected memory errors": [of_gpu("gpu_errors.ecc_uncorrected", value=5.0)],
    "damaged memory": [of_gpu("gpu_remap.failed")],
    "PCIe error": [of_gpu("pcie_error", source="kernel_log", text="Uncorrected (Fatal)")],
    "recovery action": [of_gpu("gpu_recovery", age_s=1.0, value=1.0)],
    "fabric state": [of_gpu("gpu_fabric", age_s=1.0)],
    "fabric manager": [of_node("fabric_manager", "node", age_s=1.0)],
    "NVSwitch": [of_node("sxid.20034", "pci:0000:c2:00", text="20034, Fatal, Link 28")],
    "NVLink": [of_gpu("gpu_nvlink_lost")],
    "link": [
        of_node("nic_link_lost", "nic:eth1"),
        of_node("nic_fault", "pci:0000:5e:00"),
    ],
    "NVLink errors": [of_gpu("gpu_errors.nvlink_replay")],
    "link errors": [of_node("nic_errors", "nic:eth1")],
    "far end of a link": [of_node("nic_far_end.local_ack_timeout_err", "nic:mlx5_0")],
    "GPU pattern": [
        *(patterns(odd) for odd in ("working", "throttled", "idle", "frozen", "lost")),
        patterns("working", "idle"),
        patterns("idle", "working"),
    ],
    "GPU load": [patterns("unknown"), patterns("unknown", "idle")],
    "slow GPU driver": [of_gpu("nvml_stuck", age_s=3.0)],
    "other GPU error": [of_gpu(f"xid.{code}", source="kernel_log") for code in (13, 31, 45, 92)],
    "corrected memory errors": [of_gpu("gpu_ecc.corrected", value=17_700.0)],
    "frozen GPU": [of_gpu("gpu_frozen")],
    "other PCIe error": [of_gpu("pcie_error", source="kernel_log")],
    "other PCIe error on the node": [of_node("pcie_error", "pci:0000:5e:00")],
    "uncorrected memory errors on the node": [
        of_node("gpu_errors.ecc_uncorrected", "pci:0000:5e:00")
    ],
    "retries": [
        of_gpu("gpu_errors.pcie_replays"),
        of_gpu("gpu_errors.nvlink_integrity"),
    ],
    "ended helper": [
        of_gpu(name, subject="pid:9000", source="kernel_log") for name in ("segfault", "oom_kill")
    ],
    "kernel log": [
        of_process(name) for name in ("hung_task", "soft_lockup", "segfault", "oom_kill")
    ],
    "machine check": [of_node("machine_check")],
    "cgroup limit": [of_process("cpu_limit"), of_process("memory_limit")],
    "process state": [
        a_host(state="D"),
        a_host(kernel={"frozen": True}),
        a_host(kernel={"tracer_pid": 77}),
    ],
    "Python run": [a_host(native=replace(POLLS, ran_python=True))],
    "native place": [a_host(native=a_native("native", library="libfoo.so", running=True))],
    "movement": [
        a_host(written=1e7),
        a_host(movement=Movement(socket_bytes_per_s=1e6)),
    ],
    "CPU": [a_host(native=None, cpu=1.0)],
    "running": [a_host(**RUNS)],
    "sleeping": [a_host(state="S", syscall="futex", active=False)],
    "collective log": [("unlogged", None)],
}
"""Evidence about the odd rank by kind: each one alone, beside ranks that are all alike."""

CASES = [(kind, what, value) for kind, each in EVIDENCE.items() for what, value in each]


def alike(kind):
    """Return how the other hosts wait."""
    if kind == "running":
        return {"native": replace(POLLS, running=False), "syscall": "futex"}
    return RUNS if kind in ("Python run", "native place", "sleeping") else {}


def make_case(kind, what, value, *, logged, size=8):
    """Make a job of 8 ranks in which this evidence alone separates one."""
    values = alike(kind)
    built = ranks_in(size, IN_ALL_REDUCE, **values)
    if what == "host":
        built = with_rank(built, a_rank(ODD, IN_ALL_REDUCE, **(values | value)))
    if logged or what == "unlogged":
        made = {rank: {"w": calls("all_reduce", before=3, open=1)} for rank in range(size)}
        if what == "unlogged":
            del made[ODD]
        case = a_recorded_case(built, {"w": list(range(size))}, made)
    else:
        case = a_case(built)
    first, second, *others = case.nodes
    if what == "patterns":
        odd, others = value
        return replace(case, nodes=tuple(of_gpus(case, node, odd, others) for node in case.nodes))
    if what in ("observation", "node"):
        second = replace(second, observations=(value,))
    return replace(case, nodes=(first, second, *others))


def of_gpus(case, node, odd, others):
    made = tuple(
        replace(
            seen(
                f"gpu_pattern.{odd if each.rank == ODD else others}",
                subject=f"pci:0000:{each.rank:02x}:00",
                age_s=1.0,
                text="99% busy, memory 4%, 300 W of 700 W",
            ),
            pid=each.pid,
        )
        for each in case.ranks
        if each.node == node.node
    )
    return replace(node, observations=made)


def likeliest(diagnosis):
    """Return the ranks of the verdict, or of its first alternative."""
    if diagnosis.cause.value != "unknown":
        return tuple(each.rank for each in diagnosis.suspects)
    return diagnosis.alternatives[0].suspects


PLACES = {row.name for row in ROWS if row.strength is Strength.DECIDES and not row.names_ranks}
SUPPORTING = {kind.name for kind in KINDS if kind.strength is Strength.SUPPORTS}


def of_kinds(names):
    """Return the arguments of all cases of these kinds."""
    cases = [each for each in CASES if each[0] in names]
    return pytest.mark.parametrize(
        ("kind", "what", "value"),
        cases,
        ids=[f"{kind}-{number}" for number, (kind, _, _) in enumerate(cases)],
    )


@of_kinds(EVIDENCE)
def test_evidence_of_any_kind_that_separates_a_rank_prevents_a_symmetric_hang(kind, what, value):
    case = make_case(kind, what, value, logged=False)
    assert kind in [each.kind for each in take_picture(case).separations]
    diagnosis = diagnose(case)
    assert diagnosis.cause.value != "symmetric_hang"
    assert not [step for step in diagnosis.next_steps if step.startswith("check the network")]
    if not diagnosis.suspects and kind in PLACES:
        assert diagnosis.cause.value == "fabric_fault"  # it names a link, and no rank
        return
    assert ODD in likeliest(diagnosis)
    assert set(likeliest(diagnosis)) <= ({4, 5, 6, 7} if what == "node" else {ODD})
    assert diagnosis.domain is not Domain.NETWORK


@of_kinds(EVIDENCE.keys() - SUPPORTING - {"collective log"})
def test_no_rank_is_behind_whose_log_shows_that_it_has_entered_the_call(kind, what, value):
    """An error of its GPU, its node or its process still prevents a symmetric hang."""
    diagnosis = diagnose(make_case(kind, what, value, logged=True))
    causes = {diagnosis.cause.value, *(each.cause.value for each in diagnosis.alternatives)}
    assert "behind_collective" not in causes
    assert diagnosis.cause.value != "symmetric_hang"
    assert not [step for step in diagnosis.next_steps if step.startswith("check the network")]
    if diagnosis.cause.value in ("unknown", "fabric_fault"):
        said = "ranks 4-7 only" if what == "node" else "rank 5 only"
        assert said in diagnosis.summary or diagnosis.cause.value == "fabric_fault"
        assert "gpu-01" in diagnosis.next_steps[0]


@of_kinds(SUPPORTING)
def test_what_a_host_does_beside_a_call_that_all_have_entered_is_only_shown(kind, what, value):
    """An upload, a logger or a loader of one rank hides no fault of the network."""
    case = make_case(kind, what, value, logged=True)
    found = [each for each in take_picture(case).separations if each.kind == kind]
    assert [item.rank for each in found for item in each.ranks] == [ODD]
    diagnosis = diagnose(case)
    assert (diagnosis.cause.value, diagnosis.confidence) == ("symmetric_hang", 0.95)
    assert (diagnosis.domain, diagnosis.alternatives) == (Domain.NETWORK, ())
    assert found[0].words.format(ranks="rank 5") in " ".join(e.text for e in diagnosis.evidence)


ORDINARY = {kind.name for kind in KINDS if kind.is_ordinary}
LARGE = 2 * ORDINARY_RANKS


@pytest.mark.long
@pytest.mark.parametrize("logged", [False, True], ids=["stacks", "logs"])
@of_kinds(ORDINARY)
def test_what_many_healthy_machines_show_hides_no_fault_of_the_network_in_a_large_job(
    kind, what, value, logged
):
    case = make_case(kind, what, value, logged=logged, size=LARGE)
    found = [each for each in take_picture(case).separations if each.kind == kind]
    assert ODD in [item.rank for each in found for item in each.ranks]
    diagnosis = diagnose(case)
    assert diagnosis.cause.value == "symmetric_hang"
    assert diagnosis.confidence == (0.95 if logged else 0.6)
    assert (diagnosis.domain, diagnosis.alternatives) == (Domain.NETWORK, ())
    assert [e for e in diagnosis.evidence if " only: what happened" in e.text]


@pytest.mark.parametrize("logged", [False, True], ids=["stacks", "logs"])
@of_kinds(ORDINARY)
def test_on_more_machines_than_chance_explains_it_does(kind, what, value, logged):
    case = make_case(kind, what, value, logged=logged, size=LARGE)
    pids = {each.node: each.pid for each in case.ranks}
    nodes = [
        replace(node, observations=(replace(value, pid=value.pid and pids[node.node]),))
        for node in case.nodes[:3]
    ]
    diagnosis = diagnose(replace(case, nodes=(*nodes, *case.nodes[3:])))
    assert diagnosis.cause.value == "unknown"


@pytest.mark.long
@of_kinds(
    {"GPU error", "GPU pattern", "corrected memory errors", "frozen GPU", "kernel log"}
    | {"uncorrected memory errors", "uncorrected memory errors on the node"}
)
def test_what_healthy_machines_do_not_show_decides_in_a_job_of_any_size(kind, what, value):
    diagnosis = diagnose(make_case(kind, what, value, logged=True, size=LARGE))
    assert diagnosis.cause.value in ("unknown", "gpu_fault")


def test_a_watchdog_that_goes_on_separates_no_rank():
    """A healthy one calls the driver ten times a second, and may be seen there twice."""
    built = with_rank(ranks_in(8), a_rank(ODD, watchdog=a_native("device_wait", run_ns=7)))
    case = a_case(built)
    odd = case.ranks[ODD]
    first, second = odd.dumps
    later = replace(second, watchdog=a_native("device_wait", run_ns=9, switches=4))
    ranks = [each if each is not odd else odd.with_dumps((first, later)) for each in case.ranks]
    assert not take_picture(replace(case, ranks=tuple(ranks))).separations


def test_a_missing_log_makes_no_rank_with_a_log_one_that_is_behind():
    case = make_case("collective log", "unlogged", None, logged=True)
    writes = tuple(
        replace(each, movement=Movement(write_bytes_per_s=1e7)) if each.rank == 3 else each
        for each in case.ranks
    )
    diagnosis = diagnose(replace(case, ranks=writes))
    assert [each.suspects for each in diagnosis.alternatives] == [(ODD,)]


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("native", [None, POLLS], ids=["stacks", "native"])
def test_of_two_halves_of_which_one_runs_none_differs(size, native):
    built = [
        a_rank(r, IN_ALL_REDUCE, **({**RUNS, "native": native} if r % 2 else {"native": native}))
        for r in range(size)
    ]
    assert not take_picture(a_case(built)).separations


def test_every_kind_of_evidence_is_in_the_test():
    """Those of a row about the node are alike, and so is a row that needs two observations."""
    alike = {f"{row.name} on the node" for row in ROWS}
    assert {kind.name for kind in KINDS} - alike - {"PCIe lanes"} == EVIDENCE.keys() - alike


@pytest.mark.parametrize("logged", [False, True], ids=["stacks", "logs"])
@pytest.mark.parametrize("kind", EVIDENCE)
def test_ranks_that_are_all_alike_are_still_a_symmetric_hang(kind, logged):
    """The cases of this file differ from this one by their evidence alone."""
    diagnosis = diagnose(make_case(kind, "none", None, logged=logged))
    found = (
        diagnosis.cause.value,
        diagnosis.alternatives[0].cause.value if (diagnosis.alternatives) else "",
    )
    # Hosts run ahead of their devices: where they wait does not show that all entered the call.
    is_queued = alike(kind) and not logged
    assert found == (("unknown", "symmetric_hang") if is_queued else ("symmetric_hang", ""))
    assert diagnosis.confidence == (0.0 if is_queued else 0.95 if logged else 0.6)


@pytest.mark.parametrize("name", ["gpu_ecc.corrected", "xid.31", "gpu_errors.pcie_replays"])
def test_what_all_ranks_have_separates_none(name):
    case = make_case("GPU error", "none", None, logged=True)
    nodes = tuple(
        replace(
            node,
            observations=tuple(
                replace(seen(name, value=500.0, subject=f"pci:{each.rank}"), pid=each.pid)
                for each in case.ranks
                if each.node == node.node
            ),
        )
        for node in case.nodes
    )
    assert diagnose(replace(case, nodes=nodes)).cause.value == "symmetric_hang"


def test_a_gpu_that_only_another_job_uses_separates_none():
    _, error = of_node("pcie_error", DEVICE)
    used = replace(seen("gpu_process.77", age_s=1.0), pid=77)
    case = make_case("GPU error", "none", None, logged=True)
    first, second = case.nodes
    second = replace(second, observations=(error, used))
    assert diagnose(replace(case, nodes=(first, second))).cause.value == "symmetric_hang"


def test_what_is_older_than_the_stall_separates_none():
    for kind, what, value in CASES:
        # A call that has not returned goes on: its age does not matter.
        if what in ("observation", "node") and not kind.endswith("GPU driver"):
            old = replace(value, age_s=900.0)
            picture = take_picture(make_case(kind, what, old, logged=False))
            assert not picture.separations, old


def test_every_family_of_observations_is_a_row_or_has_a_reason_why_it_blames_nobody():
    lines = read_table("watchtower.readers", "kernel_lines")["line"]
    names = {line["name"].partition(".")[0] for line in lines}
    names |= {f"gpu_errors.{name}" for name in ERRORS}
    names |= {value.name for _, what, value in CASES if what in ("observation", "node")}
    known = (*(name for row in ROWS for name in row.observed), *BLAME_NOBODY)
    assert not [name for name in names if not name.startswith(known)]


def test_the_summary_of_an_unknown_cause_names_what_separates_the_rank():
    diagnosis = diagnose(make_case("cgroup limit", *EVIDENCE["cgroup limit"][0], logged=False))
    said = "process 4005 of rank 5 only: what happened (8 s ago)"
    assert said in diagnosis.summary
    assert "check rank 5 on gpu-01 first" in diagnosis.next_steps[0]


def test_where_nothing_measured_points_to_the_network_nobody_is_sent_there():
    """Hosts in a futex at one line may wait for anything."""
    diagnosis = diagnose(a_case(ranks_in(8, IN_ALL_REDUCE, syscall="futex")))
    assert (diagnosis.cause.value, diagnosis.domain) == ("symmetric_hang", Domain.UNKNOWN)
    assert "network" not in diagnosis.summary
    assert not any(step.startswith("check the network") for step in diagnosis.next_steps)
    at_sockets = diagnose(a_case(ranks_in(8, IN_ALL_REDUCE)))
    assert at_sockets.domain is Domain.NETWORK
    assert "check the network" in at_sockets.summary


def test_a_rank_that_moves_data_beside_its_wait_does_not_delay_the_incident():
    diagnosis = diagnose(make_case("movement", "host", {"written": 1e7}, logged=False))
    assert likeliest(diagnosis) == (ODD,)
    assert not diagnosis.suspects_moving
    assert not diagnosis.suspects_transfer


def test_stopped_ranks_are_not_asked():
    stopped = a_rank(ODD, state="T")
    diagnosis = diagnose(a_case(with_rank(ranks_in(8), stopped)))
    assert diagnosis.cause.value == "process_stopped"
    assert stopped.evidence.state is ProcessState.STOPPED
