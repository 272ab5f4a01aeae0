"""From how many ranks each source of evidence comes that only a diagnosis can see.

The tower counts reports, heartbeats and dumps itself. It does not decode the dumps, so what is in
them is counted here.
"""

from __future__ import annotations

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.evidence.gpus import FAMILY as GPU_PATTERN
from watchtower.wire.report import KERNEL_LOG_GAP

NVML = "nvml"
"""Source of observations of an agent that reads the GPUs of its node."""


def measure_coverage(picture: Picture) -> dict[str, float]:
    """Return the share of the live ranks, by source of evidence; empty without live ranks.

    `gpu` is left out for a job on nodes without GPUs.
    """
    live = picture.live
    if not live:
        return {}
    nodes = {node.node: node for node in picture.case.nodes}
    logging = {n for n, node in nodes.items() if KERNEL_LOG_GAP not in node.limits.collectors}
    covered = {
        "native": [item for item in live if _has_native(item)],
        "collective_log": [item for item in live if item.has_log],
        "kernel_log": [item for item in live if item.evidence.node in logging],
    }
    if any(each.source == NVML for node in nodes.values() for each in node.observations):
        covered["gpu"] = [item for item in live if picture.observed(item.rank, GPU_PATTERN)]
    return {source: len(ranks) / len(live) for source, ranks in covered.items()}


def _has_native(position: Position) -> bool:
    """Return whether the native code of its thread is known. One that sleeps needs none."""
    has_dump = position.last_dump is not None
    return has_dump and (position.native is not None or position.asleep)
