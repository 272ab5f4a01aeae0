"""Examples of the answers about ranks, stacks and waits. They are of the same job as `examples`."""

from __future__ import annotations

from watchtower.api.examples.objects import JOB, NODE, plain
from watchtower.views.case_summary import (
    STATES,
    Contrast,
    Difference,
    NodeRanks,
    RankGroup,
    RankState,
    StackBranch,
    StackTree,
    WaitArrow,
    WaitBox,
    WaitBoxes,
    make_rank_set,
)
from watchtower.views.node import UnwatchedList, UnwatchedView
from watchtower.views.rank import EvidenceView, RanksView
from watchtower.views.stacks import StackList, ThreadStackView
from watchtower.wire.stacks import Frame

_ALL_REDUCE = "all_reduce, train.py:22 in train"
_LOADING = "data.py:88 in __next__"
_SUSPECT_RANKS = make_rank_set([37])
_OTHER_RANKS = make_rank_set([*range(37), *range(38, 512)])
RANKS = plain(
    RanksView(
        count=512,
        node_ranks=[NodeRanks(node=NODE, ranks="32-39", count=8)],
        states=[state.value for state in STATES],
        step=1233,
        phases=["", "checkpoint"],
        groups=[
            RankGroup(
                state=RankState.SUSPECT,
                lag=0,
                phase="",
                place=_LOADING,
                rank_set=_SUSPECT_RANKS,
                node=NODE,
            )
        ],
        groups_left_out=0,
        ranks_left_out=0,
    )
)
EVIDENCE = plain(
    EvidenceView(
        waits=WaitBoxes(
            boxes=(
                WaitBox(
                    rank_set=_OTHER_RANKS,
                    suspect_ranks="",
                    state=RankState.WAITING,
                    place=_ALL_REDUCE,
                    node="",
                    is_cycle=False,
                    call="",
                    layer=1,
                ),
                WaitBox(
                    rank_set=_SUSPECT_RANKS,
                    suspect_ranks="37",
                    state=RankState.ELSEWHERE,
                    place=_LOADING,
                    node=NODE,
                    is_cycle=False,
                    call="",
                    layer=0,
                ),
            ),
            arrows=(
                WaitArrow(
                    from_box=0,
                    to_box=1,
                    label="all_reduce number 1234 of group default_pg (512 ranks)",
                    source="collective log",
                ),
            ),
            sentence="Ranks 0-36,38-511 wait in all_reduce number 1234 of group default_pg "
            "(512 ranks) for rank 37 (gpu-042). Rank 37 (gpu-042) is at data.py:88 in __next__.",
        ),
        stack_tree=StackTree(
            frames=(Frame(function="__next__", file="data.py", line=88),),
            branches=(
                StackBranch(
                    frame_numbers=(0,),
                    rank_set=_SUSPECT_RANKS,
                    has_suspect=True,
                    ending=_SUSPECT_RANKS,
                ),
            ),
            rank_count=1,
        ),
        contrast=Contrast(
            rank=37,
            node=NODE,
            peer_count=511,
            differences=(
                Difference(
                    name="place in the code",
                    suspect=_LOADING,
                    peers=_ALL_REDUCE,
                    agreeing=0,
                    known=511,
                ),
            ),
            same=("step", "phase"),
        ),
    )
)
STACKS = plain(
    StackList(
        job=JOB,
        generation=2,
        items=[
            ThreadStackView(
                ranks="37",
                thread="MainThread",
                frames=[Frame(function="__next__", file="data.py", line=88)],
                native="is blocked in libzstd.so.1",
            )
        ],
        left_out=0,
        missing_evidence=[],
    )
)
UNWATCHED = plain(
    UnwatchedList(
        items=[
            UnwatchedView(
                node=NODE,
                job=JOB,
                owner="uid:1000",
                reason="second_claim",
                count=1,
                pids=[4801],
                text=f"1 process is not watched: another process has the same rank of job {JOB}.",
            )
        ],
        rank_count=1,
    )
)
