"""Hypothesis strategies: any stack, any rank, any case, and cases with a known culprit."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.diagnosis import builders as b
from watchtower.evidence.case import Case, Presence
from watchtower.wire.dumps import FailureKind
from watchtower.wire.report import EndingKind, ProcessState

STACKS = (
    b.IN_ALL_REDUCE,
    b.IN_BARRIER,
    b.IN_INIT,
    b.IN_TORCH_INIT,
    b.IN_TORCH_ALL_REDUCE,
    b.IN_DDP_BACKWARD,
    b.FETCHING,
    b.IN_USER_CODE,
    b.IN_LOCK,
    b.SAVING,
    b.REQUESTING,
    b.IN_HIDDEN_WAIT,
    b.IN_MULTI_LOADER,
    "",
)
SYSCALLS = ("", "futex", "recvfrom", "read", "clock_nanosleep", "poll", "wait4")
ERRORS = ("", "ValueError: bad", "ConnectionResetError: peer", "KeyboardInterrupt", "a.B: c")

names = st.sampled_from(STACKS)
foreign_text = st.text(max_size=30)


@st.composite
def live_ranks(draw, rank):
    return b.a_rank(
        rank,
        draw(names),
        before=draw(st.none() | names),
        dumps=draw(st.integers(0, 2)),
        state=draw(st.sampled_from([state.value for state in ProcessState])),
        syscall=draw(st.sampled_from(SYSCALLS)),
        target=draw(foreign_text),
        kernel={"tracer_pid": draw(st.integers(0, 1)), "tracer_name": draw(foreign_text)},
        cpu=draw(st.sampled_from([0.0, 0.3, 1.0])),
        written=draw(st.sampled_from([0.0, 1e7])),
        active=draw(st.booleans()),
        step=draw(st.none() | st.integers(-1, 3)),
        phase=draw(st.sampled_from(["", "checkpoint", "eval"])),
        children=draw(
            st.lists(
                st.builds(
                    b.a_child,
                    st.integers(1, 9),
                    st.sampled_from("STDZR"),
                    st.sampled_from(["", b.IN_WORKER]),
                ),
                max_size=2,
            ).map(tuple)
        ),
        child_stacks=(b.IN_WORKER,),
        failure=draw(
            st.none() | st.builds(b.a_failure, st.sampled_from(list(FailureKind)), foreign_text)
        ),
        presence=draw(
            st.sampled_from([Presence.LIVE, Presence.LIVE, Presence.SILENT, Presence.UNREPORTED])
        ),
        node=draw(st.sampled_from(["a", "b", ""])),
        rivals=draw(st.sampled_from([(), ("c 7",)])),
    )


@st.composite
def dead_ranks(draw, rank):
    kind = draw(st.sampled_from(list(EndingKind)))
    code = draw(st.none() | st.sampled_from([0, 1, 3, 6, 9, 11, 15, 64, 137]))
    built = b.a_dead_rank(
        rank,
        code=code if kind is EndingKind.EXIT else None,
        signal=code if kind is EndingKind.SIGNAL else None,
        error=draw(st.sampled_from(ERRORS)),
        oom=draw(st.booleans()),
        age_s=draw(st.floats(0, 10)),
        step=draw(st.none() | st.integers(-1, 3)),
    )
    return built


@st.composite
def cases(draw) -> Case:
    """Anything at all."""
    count = draw(st.integers(1, 7))
    built = [
        draw(live_ranks(rank) | dead_ranks(rank) | st.builds(b.a_missing_rank, st.just(rank)))
        for rank in range(count)
    ]
    return b.a_case(built, stalled_for_s=draw(st.floats(0, 1e4)))


@dataclass(frozen=True)
class Hung:
    """A case with its truth."""

    case: Case
    culprit: int


FAULTS = {
    "dataloader_stall": lambda rank: b.a_rank(rank, b.FETCHING, syscall="read"),
    "lock_deadlock": lambda rank: b.a_rank(rank, b.IN_LOCK, syscall="futex"),
    "busy_loop": lambda rank: b.a_rank(
        rank, b.IN_USER_CODE, cpu=1.0, state="R", active=True, syscall=""
    ),
    "checkpoint_stall": lambda rank: b.a_rank(rank, b.SAVING, syscall="write"),
    "network_wait": lambda rank: b.a_rank(rank, b.REQUESTING, syscall="recvfrom"),
    "behind_collective": lambda rank: b.a_rank(rank, b.IN_USER_CODE, syscall="clock_nanosleep"),
    "process_stopped": lambda rank: b.a_rank(rank, state="T"),
    "process_traced": lambda rank: b.a_rank(rank, state="t"),
    "uninterruptible_io": lambda rank: b.a_rank(rank, b.SAVING, state="D", syscall="write"),
    "process_died": lambda rank: b.a_dead_rank(rank, code=3),
    "exception": lambda rank: b.a_dead_rank(rank, error="ValueError: bad shard"),
    "exited_early": lambda rank: b.a_dead_rank(rank, code=0),
    "oom_killed": lambda rank: b.a_dead_rank(rank, signal=9, oom=True),
}
WAITS = (
    (b.IN_ALL_REDUCE, "recvfrom"),
    (b.IN_TORCH_ALL_REDUCE, "futex"),
    (b.IN_DDP_BACKWARD, "futex"),
)


@st.composite
def hung_cases(draw, least=5, most=16) -> Hung:
    """One culprit, all others in a collective."""
    count = draw(st.integers(least, most))
    culprit = draw(st.integers(0, count - 1))
    stack, syscall = draw(st.sampled_from(WAITS))
    fault = FAULTS[draw(st.sampled_from(sorted(FAULTS)))]
    built = b.with_rank(b.ranks_in(count, stack, syscall=syscall), fault(culprit))
    return Hung(case=b.a_case(built), culprit=culprit)
