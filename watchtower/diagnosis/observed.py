"""Evidence of collectors that no reason of the verdict contains: lines of the kernel log, what NVML
says about GPUs, limits of CPU and memory, lost links, and more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import ranks_of
from watchtower.evidence.observed import GPU_SUBJECTS
from watchtower.evidence.written import names_ranks, recent_lines, write_line
from watchtower.wire.dumps import WrittenLines
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Evidence
from watchtower.writing.ranksets import format_ranks, name_ranks
from watchtower.writing.text import clean, format_duration

NVML = "nvml"

COLLECTORS = {
    "clock": "clock",
    "cpu_limit": "CPU limit",
    "disks": "file systems",
    "fabric_manager": "fabric manager",
    "infiniband": "InfiniBand and RoCE",
    "kernel_log": "kernel log",
    "listeners": "listening sockets",
    "memory_limit": "memory limit",
    "network": "network interfaces",
    NVML: "NVML",
    "pressure": "pressure",
    "shared_memory": "shared memory",
}
"""Collectors whose events are shown, and the name of each in a verdict."""

STATES = frozenset({"gpu_pattern", "gpu_process", "gpu_ecc", "shm_small"})
"""Families that are states, not events. The totals of the errors of a GPU are events."""

BEFORE_S = 60.0
"""Events that are older than the stall by more than this are not shown."""

AFTER_S = 60.0
"""Events about no suspect that are younger than the stall by more than this are not shown: they
cannot be its reason. The stall begins with the last step, so its reason may be a step younger."""

MAX_SHOWN = 4
"""Events of one verdict: those about its suspects first."""


def show_observations(
    picture: Picture, accused: Sequence[Position], quoted: Collection[Observation] = ()
) -> tuple[Evidence, ...]:
    """Return recent events of the nodes: those about the suspects, then those about others.

    They have no weight: a reason that counts has its own evidence. `quoted` are not shown again.
    """
    return tuple(islice(_find(picture, accused, quoted), MAX_SHOWN))


def _find(
    picture: Picture, accused: Sequence[Position], quoted: Collection[Observation]
) -> Iterator[Evidence]:
    shown: set[tuple[str, Observation]] = set()
    for item in accused:
        for each in picture.observed(item.rank):
            if _is_recent(picture, each) and each not in quoted:
                shown.add((item.evidence.node, each))
                yield _write(item.evidence.node, each, format_ranks([item.rank]))
    for node, each in find_events(picture):
        if (node, each) not in shown and each not in quoted:
            yield _write(node, each, "")


def find_events(picture: Picture) -> Iterator[tuple[str, Observation]]:
    """Yield the recent events that may be the reason of the stall, with their nodes."""
    least_age_s = picture.case.stalled_for_s - AFTER_S
    for node in picture.case.nodes:
        for each in sorted(node.observations, key=lambda each: each.age_s):
            if _is_recent(picture, each) and each.age_s >= least_age_s:
                yield node.node, each


def _is_recent(picture: Picture, observation: Observation) -> bool:
    is_recent = observation.age_s <= picture.case.stalled_for_s + BEFORE_S
    is_event = observation.source in COLLECTORS and observation.family not in STATES
    return is_event and is_recent


def _write(node: str, observation: Observation, ranks: str) -> Evidence:
    related = "" if ranks else " (it names no suspect)"
    ago = f", {format_duration(observation.age_s)} ago" if observation.age_s > 0 else ""
    device = _name_gpu(observation)
    text = f"{clean(node, 64)}{ago}: {device}{clean(observation.text, 200)}{related}"
    return Evidence(source=COLLECTORS[observation.source], text=text, ranks=ranks)


def _name_gpu(observation: Observation) -> str:
    """Return the GPU that a text is about, if the text does not name it itself."""
    device = clean(observation.subject.partition(":")[2], 32)
    is_gpu = observation.source == NVML and observation.subject.startswith(GPU_SUBJECTS)
    return f"GPU {device}: " if is_gpu and device not in observation.text else ""


MAX_LINES_SHOWN = 3
"""Lines of output of one verdict: one that decides, and what a suspect wrote."""

NAMES_WEIGHT = 0.7
"""That a line of output names a suspect. It is shown beside the log that it became."""


def show_written(picture: Picture, accused: Sequence[Position]) -> tuple[Evidence, ...]:
    """Return what ranks have written of the stall: lines that name a suspect first, then those of
    suspects. What follows from them is a collective log or an ending with reasons of its own."""
    suspects = {item.rank for item in accused}
    lines = [
        (item.rank, each)
        for item in picture.case.ranks
        for each in recent_lines(item, picture.case.stalled_for_s)
    ]
    lines.sort(key=lambda each: (not names_ranks(each[1].text, suspects), each[0] not in suspects))
    shown = {write_line(each.text): (rank, each) for rank, each in reversed(lines)}
    return tuple(
        _quote(rank, each, line, NAMES_WEIGHT if names_ranks(line, suspects) else 0.0)
        for line, (rank, each) in list(reversed(shown.items()))[:MAX_LINES_SHOWN]
    )


def _quote(rank: int, written: WrittenLines, line: str, weight: float) -> Evidence:
    whose = f"rank {rank} wrote" if written.own else "the output of several ranks has"
    text = f"{whose}, at least {format_duration(written.age_s)} ago: {line}"
    return Evidence(source="log", text=text, ranks=format_ranks([rank]), weight=weight)


def show_bad_losses(picture: Picture) -> tuple[Evidence, ...]:
    """Return evidence of losses that became NaN or infinite. It explains no wait: no weight."""
    bad = ranks_of(item for item in picture.by_rank.values() if item.has_bad_loss)
    if not bad:
        return ()
    text = f"{name_ranks(bad)} reported a NaN or infinite loss"
    return (Evidence(source="heartbeat", text=text, ranks=format_ranks(bad), weight=0.0),)
