"""Whom to call: each line of the table, by a golden or by a value below."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.diagnosis import builders as b
from tests.diagnosis.causes.test_misconfigured import refused
from tests.diagnosis.causes.test_network_path import RECEIVER, connected, job, sender
from tests.diagnosis.test_goldens import GOLDENS
from watchtower.diagnosis.causes import CAUSES, SLOW_CAUSES, entry_of
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.domain import LAST, OUTSIDE_SOCKET, choose_line, find_domain
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case, NodeEvidence
from watchtower.wire.dumps import Mount
from watchtower.wire.observations import Observation
from watchtower.wire.report import Movement
from watchtower.wire.sockets import Ends, read_ends
from watchtower.wire.verdict import Cause, Domain

DOCS = Path(__file__).parents[2] / "docs/verdicts.md"
NFS = Mount(kind="nfs4", source="nfs1:/data", point="/mnt/data")
MEMORY = Mount(kind="tmpfs", source="tmpfs", point="/dev/shm")
DEAD = {"state": "D", "wchan": "rpc_wait_bit_killable", "mounts": (NFS,)}
OUTSIDE = "tcp 10.0.0.7:41000 -> 10.9.9.9:443"
PIPE = "pipe:[31]"


def with_children(stack: str, *children, child_stacks=(), **values):
    return b.a_rank(0, stack, children=children, child_stacks=child_stacks, **values)


BEHIND = Cause.BEHIND_COLLECTIVE
LOADING, SAVING = Cause.DATALOADER_STALL, Cause.CHECKPOINT_STALL
USER, WORKER = b.IN_USER_CODE, b.IN_WORKER

# What blocks one rank, and whom to call about it.
CASES = {
    "broken_gpu": (Cause.GPU_FAULT, b.a_rank(0, USER), "gpu"),
    "stuck_driver": (Cause.GPU_DRIVER_STUCK, b.a_rank(0, USER), "gpu"),
    "cut_network": (Cause.FABRIC_FAULT, b.a_rank(0), "network"),
    "disk_is_full": (
        Cause.EXCEPTION,
        b.a_dead_rank(0, error="OSError: [Errno 28] No space left on device: '/ckpt/7.pt'"),
        "storage",
    ),
    "broken_gpu_raises": (
        Cause.EXCEPTION,
        b.a_dead_rank(0, error="AcceleratorError: CUDA error: uncorrectable ECC error"),
        "gpu",
    ),
    "service_not_reached": (
        Cause.EXCEPTION,
        b.a_dead_rank(0, error="socket.gaierror: [Errno -3] Temporary failure"),
        "network",
    ),
    "own_exception": (Cause.EXCEPTION, b.a_dead_rank(0, error="ValueError: 3"), "user_code"),
    "lost_connection": (
        Cause.EXCEPTION,
        b.a_dead_rank(0, error="ConnectionResetError: [Errno 104] Connection reset by peer"),
        "network",
    ),
    "gave_up_waiting": (
        Cause.EXCEPTION,
        b.a_dead_rank(0, error="RuntimeError: Timed out waiting 1800000ms for recv operation"),
        "unknown",
    ),
    "nccl_system_error": (
        Cause.EXCEPTION,
        b.a_dead_rank(0, error="DistBackendError: NCCL error in: x | ncclSystemError: y"),
        "node",
    ),
    "crash": (Cause.PROCESS_DIED, b.a_dead_rank(0, signal=11), "user_code"),
    "exit_code": (Cause.PROCESS_DIED, b.a_dead_rank(0, code=3), "user_code"),
    "terminated": (Cause.PROCESS_DIED, b.a_dead_rank(0, signal=15), "operator"),
    "killed": (Cause.PROCESS_DIED, b.a_dead_rank(0, signal=9), "unknown"),
    "d_in_gpu_driver": (
        Cause.UNINTERRUPTIBLE_IO,
        b.a_rank(0, USER, state="D", syscall="ioctl", kernel={"wchan": "nvidia_ioctl"}),
        "gpu",
    ),
    "call_on_gpu_device": (
        BEHIND,
        b.a_rank(0, USER, syscall="ioctl", target="/dev/nvidiactl"),
        "gpu",
    ),
    "d_in_vfork": (
        Cause.UNINTERRUPTIBLE_IO,
        b.a_rank(0, USER, state="D", syscall="vfork", kernel={"wchan": "kernel_clone"}),
        "user_code",
    ),
    "d_on_a_disk": (
        Cause.UNINTERRUPTIBLE_IO,
        b.a_rank(0, USER, state="D", syscall="read", kernel={"wchan": "io_schedule"}),
        "storage",
    ),
    "d_at_an_unknown_place": (
        Cause.UNINTERRUPTIBLE_IO,
        b.a_rank(0, USER, state="D", syscall=""),
        "storage",
    ),
    "d_while_saving": (SAVING, b.a_rank(0, b.SAVING, state="D", syscall="write"), "storage"),
    "fuse_in_state_s": (
        BEHIND,
        b.a_rank(0, USER, syscall="openat", kernel={"wchan": "request_wait_answer"}),
        "storage",
    ),
    "worker_on_a_dead_mount": (
        LOADING,
        with_children(
            b.IN_MULTI_LOADER,
            b.a_child(5001, stack=WORKER, **DEAD),
            child_stacks=(WORKER,),
            syscall="poll",
        ),
        "storage",
    ),
    "child_in_state_d": (
        BEHIND,
        with_children(USER, b.a_child(5001, "D", syscall="write"), syscall="wait4"),
        "storage",
    ),
    "read_of_a_file": (
        LOADING,
        b.a_rank(0, b.FETCHING, syscall="read", target="/mnt/shards/0042.tar"),
        "storage",
    ),
    "read_of_a_file_in_memory": (
        LOADING,
        b.a_rank(
            0, b.FETCHING, syscall="read", target="/dev/shm/1.tar", kernel={"mounts": (MEMORY,)}
        ),
        "data",
    ),
    "prompt_at_a_terminal": (
        BEHIND,
        b.a_rank(0, USER, syscall="read", target="/dev/pts/3"),
        "user_code",
    ),
    "service_while_loading": (
        LOADING,
        b.a_rank(0, b.FETCHING, target=OUTSIDE),
        "network",
    ),
    "child_uploads": (
        SAVING,
        with_children(USER, b.a_child(5001, syscall="sendto", target=OUTSIDE), syscall="wait4"),
        "network",
    ),
    "service_in_user_code": (Cause.NETWORK_WAIT, b.a_rank(0, USER, target=OUTSIDE), "network"),
    "stopped_worker": (
        LOADING,
        with_children(
            b.IN_MULTI_LOADER, b.a_child(5001, "T", WORKER), child_stacks=(WORKER,), syscall="poll"
        ),
        "operator",
    ),
    "worker_in_the_data_set": (
        LOADING,
        with_children(
            b.IN_MULTI_LOADER,
            b.a_child(5001, "S", WORKER, syscall="clock_nanosleep"),
            child_stacks=(WORKER,),
            syscall="poll",
        ),
        "data",
    ),
    "worker_at_a_lock": (
        LOADING,
        with_children(
            b.IN_MULTI_LOADER,
            b.a_child(5001, "S", WORKER, syscall="futex"),
            child_stacks=(WORKER,),
            syscall="poll",
        ),
        "user_code",
    ),
    "pipe_to_a_child": (
        SAVING,
        with_children(
            b.SAVING, b.a_child(5001, syscall="clock_nanosleep"), syscall="write", target=PIPE
        ),
        "user_code",
    ),
    "pipe_that_the_child_reads": (
        BEHIND,
        with_children(
            USER, b.a_child(5001, syscall="read", target=PIPE), syscall="write", target=PIPE
        ),
        "user_code",
    ),
    "pipe_beside_idle_children": (
        BEHIND,
        with_children(
            USER, b.a_child(5001, syscall="read", target="pipe:[9]"), syscall="write", target=PIPE
        ),
        "unknown",
    ),
    "pipe_to_the_launcher": (BEHIND, b.a_rank(0, USER, syscall="write", target=PIPE), "unknown"),
    "end_of_a_child": (BEHIND, b.a_rank(0, USER, syscall="wait4"), "user_code"),
    "fifo": (SAVING, b.a_rank(0, b.SAVING, syscall="write", target="/ckpt/1.fifo"), "user_code"),
    "fifo_that_opens": (
        BEHIND,
        b.a_rank(0, USER, syscall="openat", kernel={"wchan": "fifo_open"}),
        "user_code",
    ),
    "client_without_an_address": (Cause.NETWORK_WAIT, b.a_rank(0, b.REQUESTING), "network"),
    "service_on_the_same_node": (
        Cause.NETWORK_WAIT,
        b.a_rank(0, b.REQUESTING, target="tcp 127.0.0.1:40000 -> 127.0.0.1:443"),
        "unknown",
    ),
    "loading_for_an_unknown_reason": (LOADING, b.a_rank(0, b.FETCHING, target=""), "data"),
    "straggler_that_loads": (Cause.STRAGGLER, b.a_rank(0, b.FETCHING), "data"),
    "straggler_that_computes": (Cause.STRAGGLER, b.a_rank(0, USER, state="R"), "unknown"),
    "sleep_in_own_code": (BEHIND, b.a_rank(0, USER, syscall="clock_nanosleep"), "user_code"),
    "message_from_an_unknown_process": (BEHIND, b.a_rank(0, USER), "unknown"),
    "saves_for_an_unknown_reason": (SAVING, b.a_rank(0, b.SAVING, syscall=""), "unknown"),
    "group_in_the_middle_of_the_job": (
        Cause.INIT_STUCK,
        b.a_rank(0, b.IN_TORCH_INIT, target=OUTSIDE),
        "user_code",
    ),
    "set_up_at_the_start": (
        Cause.INIT_STUCK,
        b.a_rank(0, b.IN_TORCH_INIT, target=OUTSIDE, step=None),
        "unknown",
    ),
    "unanswered_at_the_start": (
        Cause.INIT_STUCK,
        b.a_rank(0, b.IN_TORCH_INIT, syscall="poll", target=f"{OUTSIDE} unanswered", step=None),
        "network",
    ),
    "stopped": (Cause.UNKNOWN, b.a_rank(0, USER, state="T"), "operator"),
    "all_are_slow": (Cause.JOB_SLOW, b.a_rank(0), "unknown"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_blocks_a_rank_decides_whom_to_call(name):
    cause, built, domain = CASES[name]
    picture = b.picture_of(b.with_rank(b.ranks_in(8), built))
    assert find_domain(picture, entry_of(cause).whom, (picture.by_rank[0],)).value == domain


def lines_of_goldens():
    for folder in GOLDENS:
        picture = take_picture(msgspec.json.decode((folder / "case.json").read_bytes(), type=Case))
        truth = json.loads((folder / "truth.json").read_text("utf-8"))
        suspects = [picture.by_rank[rank] for rank in truth["suspects"]]
        yield choose_line(picture, entry_of(Cause(truth["cause"])).whom, suspects or picture.live)


def nvswitch_error():
    """A picture of a job on a node with an error of its NVSwitch."""
    words = "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up"
    error = Observation(
        source="kernel_log", subject="pci:0000:c2:00", name="sxid.20034", age_s=9.0, text=words
    )
    return b.picture_of(
        b.ranks_in(8), nodes=(NodeEvidence(node="gpu-00", silent_for_s=0.5, observations=(error,)),)
    )


def test_errors_of_an_nvswitch_are_a_matter_of_the_gpus():
    picture = nvswitch_error()
    assert find_domain(picture, entry_of(Cause.FABRIC_FAULT).whom, ()) is Domain.GPU


def lines_of_cases():
    yield choose_line(
        nvswitch_error(), entry_of(Cause.FABRIC_FAULT).whom, [nvswitch_error().by_rank[0]]
    )
    yield choose_line(
        two_mtus(), entry_of(Cause.MISCONFIGURED).whom, [two_mtus().by_rank[RECEIVER]]
    )
    full = full_disk()
    yield choose_line(full, entry_of(BEHIND).whom, [full.by_rank[0]])
    apart = take_picture(b.a_case(refused(5)))
    yield choose_line(apart, entry_of(Cause.INIT_STUCK).whom, [apart.by_rank[5]])
    for cause, built, _ in CASES.values():
        picture = b.picture_of(b.with_rank(b.ranks_in(8), built))
        yield choose_line(picture, entry_of(cause).whom, (picture.by_rank[0],))


def full_disk():
    """A picture of a job in which a rank sleeps in a full file system."""
    built = b.with_rank(b.ranks_in(8), b.a_rank(0, USER, syscall="clock_nanosleep"))
    seen = Observation(
        source="disks", subject="pid:4000", name="disk_full", age_s=9.0, text="full", pid=4000
    )
    return b.picture_of(
        built, nodes=(NodeEvidence(node="gpu-00", silent_for_s=0.5, observations=(seen,)),)
    )


def two_mtus():
    """A picture of a job in which nothing gets through between two ranks with different MTUs."""
    return take_picture(b.a_case(job(sender(), connected(b.a_rank(RECEIVER), mtu=1500))))


LINES = [(each, line) for each in Cause for line in entry_of(each).whom]


def test_every_line_has_a_golden_or_a_value():
    reached = [*lines_of_goldens(), *lines_of_cases()]
    assert [line for _, line in LINES if line not in reached] == []


def test_every_cause_has_lines():
    with_lines = {cause for cause, _ in LINES}
    assert with_lines == {each.cause for each in (*CAUSES, *SLOW_CAUSES)} | {Cause.UNKNOWN}


def documented_lines():
    """Yield cause, evidence and domain of each row, in the order of the document."""
    text = DOCS.read_text("utf-8").split("The cause and the evidence together")[1]
    elsewhere = text.split("stands for these causes: ")[1].split(".")[0]
    for row in re.findall(r"^\| (.*) \| (.*) \| `(\w+)` \|$", text, re.MULTILINE):
        causes = row[0].replace("*elsewhere*", elsewhere)
        for name in re.findall(r"`(\w+)`", causes):
            yield name, row[1].removeprefix("-"), row[2]


def test_every_line_is_documented_in_the_same_order():
    documented = list(documented_lines())
    for cause in Cause:
        expected = [
            (cause.value, each.evidence, each.domain.value) for each in entry_of(cause).whom
        ]
        found = [each for each in documented if each[0] == cause.value]
        assert found == expected, f"the table in docs/verdicts.md has other rows of {cause.value}"
    assert f"| any | {LAST.evidence} | `{LAST.domain.value}` |" in DOCS.read_text("utf-8")


def test_the_causes_in_which_a_rank_is_elsewhere_are_documented():
    names = ", ".join(f"`{each.value}`" for each in Cause if OUTSIDE_SOCKET in entry_of(each).whom)
    text = " ".join(DOCS.read_text("utf-8").split())
    assert f"*Elsewhere* stands for these causes: {names}." in text


def test_every_domain_is_documented():
    text = DOCS.read_text("utf-8")
    assert [each for each in Domain if f"| `{each.value}` |" not in text] == []


def test_the_ranks_of_a_job_are_not_outside_of_it():
    """A rank that waits for a message of another rank, in a protocol of its own."""
    peer = "tcp 10.0.0.7:41000 -> 10.0.0.8:5000"
    suspect = b.a_rank(0, b.IN_USER_CODE, target=peer)
    inside = b.a_rank(1, target="tcp 10.0.0.9:29400 -> 10.0.0.8:41000")
    for others, domain in (((), "network"), ((inside,), "unknown")):
        picture = b.picture_of(b.with_rank(b.ranks_in(8), suspect, *others))
        suspects = (picture.by_rank[0],)
        assert find_domain(picture, entry_of(Cause.NETWORK_WAIT).whom, suspects).value == domain


def test_of_several_suspects_the_domain_of_most_counts_and_an_unknown_one_does_not():
    dead = {"wchan": DEAD["wchan"], "mounts": DEAD["mounts"]}
    on_mount = [b.a_rank(r, b.FETCHING, state="D", kernel=dead) for r in (0, 1)]
    loads = [b.a_rank(r, b.FETCHING) for r in (2, 3, 4)]
    unknown = [b.a_rank(r, b.SAVING, syscall="") for r in (5, 6, 7)]
    picture = b.picture_of([*on_mount, *loads, *unknown])
    for ranks, domain in (
        ((0, 1, 2), "storage"),
        ((0, 2, 3), "data"),
        ((0, 2), "storage"),
        ((0, 5, 6, 7), "storage"),
        ((5, 6, 7), "unknown"),
    ):
        suspects = [picture.by_rank[rank] for rank in ranks]
        assert find_domain(picture, entry_of(LOADING).whom, suspects).value == domain


def test_a_rank_that_moves_data_and_was_seen_once_in_state_d_is_not_blocked():
    moving = b.a_rank(
        0, b.IN_USER_CODE, dumps=1, state="D", syscall="", movement=Movement(read_bytes_per_s=1e8)
    )
    picture = b.picture_of(b.with_rank(b.ranks_in(8), moving))
    assert find_domain(picture, entry_of(BEHIND).whom, (picture.by_rank[0],)) is Domain.USER_CODE


def test_a_job_of_which_every_rank_is_blocked_is_a_matter_of_storage_also_without_a_suspect():
    kernel = {"wchan": "rpc_wait_bit_killable", "mounts": (NFS,)}
    ranks = b.ranks_in(8, b.IN_USER_CODE, state="D", syscall="pread64", kernel=kernel)
    diagnosis = diagnose(b.a_case(ranks))
    assert (diagnosis.cause, diagnosis.domain) == (Cause.UNKNOWN, Domain.STORAGE)


@pytest.mark.parametrize(("nodes", "domain"), [(2, "network"), (1, "unknown")])
def test_a_hang_of_all_ranks_is_a_matter_of_the_network_only_between_nodes(nodes, domain):
    names = tuple(NodeEvidence(node=f"n{n}", silent_for_s=0.5) for n in range(nodes))
    picture = b.picture_of(b.ranks_in(8), nodes=names)
    assert find_domain(picture, entry_of(Cause.SYMMETRIC_HANG).whom, ()).value == domain


@pytest.mark.parametrize(
    ("target", "ends"),
    [
        ("tcp 10.0.0.1:2000 -> 10.0.0.2:3000", Ends("10.0.0.1", "10.0.0.2")),
        ("tcp [fd00::1]:2000 -> [fd00::2]:3000", Ends("fd00::1", "fd00::2")),
        ("tcp 10.0.0.1:2000 listening", None),
        ("tcp evil -> text", None),
        ("tcp 10.0.0.1:2000 -> " + "9" * 4000, None),
        ("unix socket /run/x", None),
        ("socket:[31]", None),
        ("/mnt/a -> b", None),
        ("", None),
    ],
)
def test_the_ends_of_a_socket_are_read_from_its_description(target, ends):
    assert read_ends(target) == ends


def test_loopback_and_equal_addresses_are_on_one_node():
    assert Ends("10.0.0.1", "10.0.0.1").is_on_one_node
    assert Ends("127.0.0.1", "127.0.0.2").is_on_one_node
    assert Ends("::1", "::1").is_on_one_node
    assert not Ends("10.0.0.1", "10.0.0.2").is_on_one_node
