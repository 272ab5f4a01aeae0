"""Describes the evidence that is missing: it limits a verdict, and is shown with it.

Also from how many ranks each source of evidence comes that only a diagnosis can see. The tower
counts reports, heartbeats and dumps itself, and does not decode the dumps.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.evidence.case import Presence, RankEvidence
from watchtower.evidence.exits import DeathKind
from watchtower.evidence.gpus import GPU_PATTERN
from watchtower.wire.report import KERNEL_LOG_GAP
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, format_duration, name_nodes

MAX_GAPS = 16
"""Sentences in one verdict."""

EVENT_LOOP = frozenset({"_run_once", "run_forever", "run_until_complete"})
"""The call of asyncio's loop: the stack of a task that waits is not on any thread."""


def find_gaps(picture: Picture) -> tuple[str, ...]:
    """List what is missing, the gravest first."""
    gaps = [
        *_silent_nodes(picture),
        *_unreported_ranks(picture),
        *_unread_ranks(picture),
        *_agent_gaps(picture),
        *_failed_dumps(picture),
        *_no_dumps(picture),
        *_single_dumps(picture),
        *_event_loops(picture),
        *_failed_records(picture),
        *_no_records(picture),
        *_sentence(
            list(picture.holed), "the collective log does not show whether some call is over"
        ),
        *_no_pages(picture),
        *_rivals(picture),
    ]
    return tuple(gaps[:MAX_GAPS])


def _silent_nodes(picture: Picture) -> Iterable[str]:
    silent: dict[str, list[int]] = {}
    for item in picture.case.ranks:
        if item.presence is Presence.SILENT:
            silent.setdefault(item.node, []).append(item.rank)
    for node in picture.case.nodes:
        if node.node in silent:
            yield (
                f"node {clean(node.node, 64)} has not reported for "
                f"{format_duration(node.silent_for_s)}: the state of "
                f"{name_ranks(silent[node.node])} is unknown"
            )


def _unreported_ranks(picture: Picture) -> Iterable[str]:
    ranks: dict[str, list[int]] = {}
    for item in picture.case.ranks:
        if item.presence is Presence.UNREPORTED:
            ranks.setdefault(item.node, []).append(item.rank)
    for node, unreported in sorted(ranks.items()):
        if not node:
            yield (
                f"{name_ranks(unreported)}: in no snapshot, so {_write_ended(len(unreported))} on "
                "another node; take snapshots on all nodes of the job"
            )
            continue
        yield (
            f"the agent on {clean(node, 64)} no longer reports {name_ranks(unreported)}: whether "
            "they run is unknown; check the agent's --match and rights (watchtower-agent doctor)"
        )


def _unread_ranks(picture: Picture) -> Iterable[str]:
    unread = [item for item in picture.unseen if item.evidence.presence is Presence.UNREAD]
    yield from _sentence(unread, "no file shows a call in which it waits")


def _write_ended(count: int) -> str:
    return "it has ended or runs" if count == 1 else "they have ended or run"


def is_in_no_snapshot(rank: RankEvidence) -> bool:
    """Return whether snapshots of other nodes may contain this rank."""
    return rank.presence is Presence.UNREPORTED and not rank.node


def _agent_gaps(picture: Picture) -> Iterable[str]:
    """Yield what agents may not do, if this case lacks something because of it."""
    no_stack = {item.evidence.node for item in picture.live if item.stack is None}
    no_place = {item.evidence.node for item in picture.live if _may_run_native_code(item)}
    has_missing = any(map(_was_never_found, picture.case.ranks))
    killed = {
        death.node for death in picture.deaths if death.kind in (DeathKind.KILLED, DeathKind.OOM)
    }
    found: dict[str, list[str]] = {}
    for node in picture.case.nodes:
        limits = node.limits
        if limits.python_stacks and node.node in no_stack:
            found.setdefault(clean(limits.python_stacks, 240), []).append(node.node)
        if limits.process and (has_missing or node.node in no_stack):
            found.setdefault(clean(limits.process, 240), []).append(node.node)
        for text in node.unwatched if has_missing else ():
            found.setdefault(clean(text, 240), []).append(node.node)
        if limits.collectors and node.node in killed:
            found.setdefault(clean(limits.collectors, 240), []).append(node.node)
        if limits.native_places and node.node in no_place:
            found.setdefault(clean(limits.native_places, 240), []).append(node.node)
    for sentence, nodes in found.items():
        yield f"{name_nodes(nodes)}: {sentence}"


def _was_never_found(rank: RankEvidence) -> bool:
    """Return whether no agent found a rank, or no snapshot contains it."""
    return rank.presence is Presence.MISSING or is_in_no_snapshot(rank)


def _may_run_native_code(position: Position) -> bool:
    """Return whether it runs and its library is not known: it may wait for its device."""
    return position.native is None and position.last_dump is not None and not position.asleep


def _failed_dumps(picture: Picture) -> Iterable[str]:
    failed: dict[tuple[str, str], list[int]] = {}
    for item in picture.live:
        dump = item.last_dump
        if dump and dump.failure and item.stack is None:
            key = (dump.failure.kind.value, dump.failure.help_text)
            failed.setdefault(key, []).append(item.rank)
    for (kind, help_text), ranks in failed.items():
        help_words = f": {clean(help_text, 240)}" if help_text else ""
        yield f"{name_ranks(ranks)}: no stack ({kind.replace('_', ' ')}){help_words}"


def _no_dumps(picture: Picture) -> Iterable[str]:
    if picture.case.of_files:
        bare = [item.rank for item in picture.by_rank.values() if item.stack is None]
        yield from [f"{name_ranks(bare)}: no stack is in these files"] if bare else []
        return
    yield from _sentence(
        [
            item
            for item in picture.live
            if item.stack is None and not (item.last_dump and item.last_dump.failure)
        ],
        "no stack was sampled",
    )


def _single_dumps(picture: Picture) -> Iterable[str]:
    yield from _sentence(
        [item for item in picture.live if item.stack and item.shape is Shape.UNKNOWN],
        "only one dump, so a slow rank cannot be distinguished from a hung one",
    )


def _event_loops(picture: Picture) -> Iterable[str]:
    idle = [item for item in picture.live if item.reading and item.reading.what in EVENT_LOOP]
    yield from _sentence(
        idle, "the event loop is idle: its stack does not show what its tasks await"
    )


def _failed_records(picture: Picture) -> Iterable[str]:
    failed: dict[str, list[int]] = {}
    for item in picture.live:
        if item.log_failure:
            failed.setdefault(item.log_failure, []).append(item.rank)
    for sentence, ranks in failed.items():
        yield f"{name_ranks(ranks)}: no collective log: {clean(sentence, 240)}"


def _no_records(picture: Picture) -> Iterable[str]:
    """Yield ranks without a log and without a reason, beside ranks with a log."""
    yield from _sentence(
        [
            item
            for item in picture.unlogged
            if item.last_dump is not None and item.last_dump.collectives is None
        ],
        "no collective log was read, although other ranks have one",
    )


def _no_pages(picture: Picture) -> Iterable[str]:
    if picture.case.of_files:
        return  # a heartbeat file is not what people have
    yield from _sentence(
        [item for item in picture.live if item.evidence.beat is None],
        "no heartbeat file, so the step is not known",
    )


def _rivals(picture: Picture) -> Iterable[str]:
    for item in picture.case.ranks:
        if item.rivals:
            others = clean(", ".join(item.rivals), 120)
            yield f"rank {item.rank}: other processes claim the same rank: {others}"


def _sentence(positions: list[Position], words: str) -> Iterable[str]:
    if positions:
        yield f"{name_ranks(item.rank for item in positions)}: {words}"


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
    }
    if any(each.source == NVML for node in nodes.values() for each in node.observations):
        covered["gpu"] = [item for item in live if picture.observed(item.rank, GPU_PATTERN)]
    covered["kernel_log"] = [item for item in live if item.evidence.node in logging]
    return {source: len(ranks) / len(live) for source, ranks in covered.items()}


def _has_native(position: Position) -> bool:
    """Return whether the native code of its thread is known. One that sleeps needs none."""
    has_dump = position.last_dump is not None
    return has_dump and (position.native is not None or position.asleep)
