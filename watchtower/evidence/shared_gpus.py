"""Finds ranks that share a GPU although the node has GPUs for the job that no process uses.

Some ranks share a GPU on purpose. They are left out: where a GPU is divided (MIG) or ranks share by
a server (MPS), and where the job may use no GPU more than it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from watchtower.evidence.gpus import GPU_PATTERN, GpuPattern
from watchtower.evidence.observed import GPU_SUBJECTS
from watchtower.wire.observations import GPUS_ALLOWED, MIG_IS_ON, SHARES_GPU, Observation
from watchtower.writing.text import clean

FRESH_S = 90.0
"""An older observation says nothing about the processes of a GPU. A process that has ended is
reported for a minute."""

LOST_GPU = f"{GPU_PATTERN}.{GpuPattern.LOST.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """A GPU that several ranks of a job use, while others have no process."""

    node: str
    device: str
    """"0000:3b:00"."""
    index: int | None
    ranks: tuple[int, ...]
    unused: int
    """GPUs of the node that the job may use and no process does."""

    @property
    def name(self) -> str:
        """ "GPU 3 (0000:3b:00)"."""
        device = clean(self.device, 32)
        return device if self.index is None else f"GPU {self.index} ({device})"

    def describe(self) -> str:
        """Return "GPU 0 (0000:3b:00) of n1, while no process uses 3 other GPUs"."""
        others = "another GPU" if self.unused == 1 else f"{self.unused} other GPUs"
        return f"{self.name} of {clean(self.node, 64)}, while no process uses {others}"


def find_shared_gpus(
    node: str, observations: Iterable[Observation], ranks: Mapping[int, int]
) -> Iterator[SharedGpu]:
    """Yield the GPUs of a node that ranks of a job share. `ranks`: its ranks there, by pid."""
    fresh = [each for each in observations if each.age_s <= FRESH_S]
    allowed = [each for each in fresh if each.name == GPUS_ALLOWED and each.pid in ranks]
    patterns = [each for each in fresh if each.family == GPU_PATTERN]
    is_meant = any(each.text.startswith(SHARES_GPU) for each in allowed)
    if is_meant or any(each.text.startswith(MIG_IS_ON) for each in patterns):
        return
    users: dict[str, set[int]] = {each.subject: set() for each in patterns}
    for each in fresh:
        if each.pid is not None and each.subject.startswith(GPU_SUBJECTS):
            users.setdefault(each.subject, set()).add(each.pid)
    own = {subject: pids & ranks.keys() for subject, pids in users.items()}
    most = max((int(each.value or 0) for each in allowed), default=len(patterns))
    unused = min(
        sum(1 for each in patterns if not users[each.subject] and each.name != LOST_GPU),
        most - sum(1 for pids in own.values() if pids),
    )
    index = {each.subject: each.value for each in patterns}
    for subject, pids in own.items():
        # A rank with several GPUs has one of its own, or drives all of them.
        alone = sorted(ranks[pid] for pid in pids if _count(own, pid) == 1)
        if unused > 0 and len(alone) > 1:
            number = index.get(subject)
            yield SharedGpu(
                node=node,
                device=subject.partition(":")[2],
                index=None if number is None else int(number),
                ranks=tuple(alone),
                unused=unused,
            )


def _count(users: Mapping[str, set[int]], pid: int) -> int:
    return sum(1 for pids in users.values() if pid in pids)
