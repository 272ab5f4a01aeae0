"""The sentences of verdicts about small built jobs, for what no recorded golden contains.

Other tests assert what is decided. `pytest tests/diagnosis --update-golden` writes the sentences.
"""

from dataclasses import replace
from pathlib import Path

from tests.diagnosis.builders import (
    FETCHING,
    IN_BARRIER,
    IN_DDP_BACKWARD,
    IN_TORCH_ALL_REDUCE,
    IN_USER_CODE,
    SAVING,
    Built,
    a_case,
    a_child,
    a_dead_rank,
    a_failure,
    a_rank,
    a_silent_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.recording import a_recorded_case
from tests.diagnosis.recording import calls as calls_of
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.dumps import Mount
from watchtower.wire.report import Beat

SENTENCES = Path(__file__).with_name("verdict_sentences.golden.txt")

MAIN = "<module> /job/main.py:80"
PUBLISH = f"publish /job/main.py:4 < {MAIN}"
LOCKED = f"flush /job/metrics.py:33 < {MAIN}"
SENDING = f"send @torch/distributed/distributed_c10d.py:1 < step /job/pipe.py:8 < {MAIN}"
NFS = Mount(kind="nfs4", source="nfs1:/data", point="/data")
DISK = Mount(kind="ext4", source="/dev/vda1", point="/")
FUSE = Mount(kind="fuse.s3fs", source="s3fs", point="/bucket")
FEEDER = (
    "SocketIO.readinto @socket.py:706 < urlopen @urllib/request.py:215 < fill /job/feed.py:12"
    " < Thread.run @threading.py:982 < Thread._bootstrap @threading.py:1002"
)


def held_at(stack, **values):
    """Return a job of four that waits for rank 2, which is at this stack."""
    return a_case(with_rank(ranks_in(4, IN_BARRIER), a_rank(2, stack, **values)))


def on_mounts(*mounts):
    kernel = {"wchan": "folio_wait_bit_common", "mounts": mounts}
    return held_at("read /job/data.py:88 < " + MAIN, state="D", syscall="", kernel=kernel)


def raised_at_exit():
    beat = Beat(step=41, age_s=9.0, exception_type="KeyError", exception_text="'x'")
    leaving = a_rank(3, "_shutdown @threading.py:1560", syscall="futex", beat=beat)
    return a_case(with_rank(ranks_in(8), leaving))


def given_up():
    waited = a_rank(0, IN_TORCH_ALL_REDUCE)
    dead = (a_dead_rank(rank, code=1).evidence for rank in range(4))
    built = [Built(replace(each, dumps=waited.evidence.dumps), waited.stacks) for each in dead]
    return a_case(with_rank(built, a_rank(2, IN_USER_CODE, syscall="clock_nanosleep")))


def raised_before_others_ended():
    victims = [a_dead_rank(rank, error="EOFError", age_s=2) for rank in (0, 1)]
    first = a_dead_rank(3, error="ValueError: record 7 is truncated")
    return a_case(with_rank(ranks_in(8), first, *victims, a_dead_rank(2, signal=15)))


def several_nodes_lost():
    case = a_case([*ranks_in(4), *map(a_silent_rank, range(4, 32))], stalled_for_s=12)
    nodes = [n if n.node == "gpu-00" else replace(n, silent_for_s=12.0) for n in case.nodes]
    return replace(case, nodes=tuple(nodes))


def left_by_some():
    calls = {rank: {"w": calls_of("all_reduce", before=2, open=1)} for rank in (0, 1, 2)}
    calls[3] = {"w": calls_of("all_reduce", before=1, open=1)}
    return a_recorded_case(ranks_in(4, IN_DDP_BACKWARD), {"w": [0, 1, 2, 3]}, calls)


CASES = {
    "reads a file": held_at(FETCHING, syscall="read", target="/mnt/shards/0042.tar"),
    "polls descriptors": held_at(SAVING, syscall="epoll_wait", target="anon_inode:[eventpoll]"),
    "waits at a socket": held_at(
        SAVING, syscall="recvfrom", target="tcp 10.0.0.7:41000 -> 10.9.9.9:443"
    ),
    "opens a FIFO by its path": held_at(PUBLISH, syscall="openat", target="/job/out.fifo"),
    "opens a FIFO without a path": held_at(
        PUBLISH, syscall="openat", kernel={"wchan": "fifo_open"}
    ),
    "waits for an event of a thread": held_at(
        "wait @threading.py:320 < fill /job/feed.py:18 < " + MAIN, syscall="futex"
    ),
    "waits for a thread that is shown": held_at(
        "Condition.wait @threading.py:327 < Queue.get @queue.py:171 < next_batch /job/main.py:8 < "
        + MAIN,
        syscall="futex",
        threads=(("feeder", FEEDER),),
    ),
    "writes into the pipe of a stopped child": held_at(
        PUBLISH, syscall="write", target="pipe:[7]", children=(a_child(18, "T"),)
    ),
    "waits for a lock": held_at(LOCKED, syscall="futex"),
    "waits for a lock or a message": a_case(
        with_rank(ranks_in(4, SENDING), a_rank(2, LOCKED, syscall="futex"))
    ),
    "maps a file of a network file system": on_mounts(NFS),
    "maps a file of a user's file system": on_mounts(FUSE),
    "maps a file of a disk": on_mounts(DISK),
    "maps a file of one of several mounts": on_mounts(DISK, NFS),
    "raised, and a thread keeps the process": raised_at_exit(),
    "was waited for until others gave up": given_up(),
    "raised before others ended": raised_before_others_ended(),
    "one rank does not answer, another shows no stack": a_case(
        with_rank(ranks_in(6), a_rank(4, failure=a_failure()), a_silent_rank(5))
    ),
    "some ranks have left the call": left_by_some(),
    "several nodes stopped reporting": several_nodes_lost(),
}


def test_the_sentences_of_each_case(update_golden):
    """One file, so that a change of the words shows in one difference."""
    text = ""
    for name, case in CASES.items():
        diagnosis = diagnose(case)
        steps = "".join(f"  - {step}\n" for step in diagnosis.next_steps)
        evidence = "".join(f"  {item.source}: {item.text}\n" for item in diagnosis.evidence)
        text += f"{name} ({diagnosis.cause.value}):\n  {diagnosis.summary}\n{evidence}{steps}"
    if update_golden:
        SENTENCES.write_text(text, "utf-8")
    assert text == SENTENCES.read_text("utf-8")
