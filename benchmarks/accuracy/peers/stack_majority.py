"""Accuses the ranks that are not where most ranks are. Main threads are grouped by whole stacks."""

from __future__ import annotations

from collections import defaultdict

from benchmarks.accuracy.evidence import Evidence
from benchmarks.accuracy.peers.peer import Opinion, Peer, always
from watchtower.evidence.case import RankEvidence
from watchtower.wire.stacks import Frame

Frames = tuple[Frame, ...]


def judge(evidence: Evidence) -> Opinion:
    """Accuse every rank outside of the largest group; no rank if two groups are the largest."""
    stacks = {stack.digest: stack.frames for stack in evidence.case.stacks}
    classes: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in evidence.case.ranks:
        # Ranks without a stack are a group of their own, because a missing answer is also a
        # difference.
        classes[tuple(map(_write, _main_frames(rank, stacks)))].append(rank.rank)
    sizes = sorted(map(len, classes.values()), reverse=True)
    said = f"classes of {', '.join(map(str, sizes))}"
    if sizes.count(sizes[0]) > 1:
        return Opinion(said=f"{said}: none is the largest")
    accused = [rank for ranks in classes.values() if len(ranks) < sizes[0] for rank in ranks]
    return Opinion(accused=tuple(sorted(accused)), said=said)


def _main_frames(rank: RankEvidence, stacks: dict[str, Frames]) -> Frames:
    for dump in reversed(rank.dumps):
        for thread in dump.threads:
            if thread.main and stacks.get(thread.digest):
                return stacks[thread.digest]
    return ()


def _write(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


PEER = Peer(
    name="stack_majority",
    about="Ranks are grouped by the whole stack of their main thread (function, file and line of "
    "every frame), from the last py-spy dump that watchtower took of each; all ranks outside of "
    "the largest group are accused, and none on a tie. Ranks without a stack are a group of their "
    "own.",
    applies=always,
    judge=judge,
)
