"""The context of a stall: what incidents need to know besides the condition itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.core.detection.detector import Detector, Stall, Why
from watchtower.core.diagnosed import Diagnosis
from watchtower.core.fleet.generation import Generation, NodeRecord, RankRecord

STILL_AFTER_S = 3.0
"""A process tree without movement for this long does not move: three reports in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallContext:
    """One generation during a stall, reduced to what patience and diagnosis timing depend on."""

    phase: str = ""
    """Phase of the top suspect; empty in plain training, and in a phase that steps like it."""
    typical_s: float = 0.0
    """Typical step there, 0 while it is not known."""
    starting: bool = False
    """The job has not come to its first steps."""
    no_heartbeat: bool = False
    """Samples show that it is stalled: no rank has heartbeats."""
    all_still: bool = False
    """Several ranks are live and none of them moves."""
    dumps_have: int = 0
    """Live ranks with at least one dump of this stall."""
    dumps_want: int = 0
    """Live ranks whose agents report."""
    evidence: tuple[float, ...] = ()
    """Changes whenever evidence came in that could change a diagnosis."""

    @property
    def is_complete(self) -> bool:
        """Whether every rank that can be dumped was."""
        return self.dumps_have >= self.dumps_want


def stall_context_of(
    gen: Generation,
    nodes: Mapping[str, NodeRecord],
    detector: Detector,
    stall: Stall,
    diagnosis: Diagnosis | None,
    now: float,
) -> StallContext:
    """Reduce a generation in `stall`; `diagnosis` is the latest one, if there is one."""
    live = detector.find_reporting(gen.live(), nodes, now)
    # Of each rank the newest: only the last dumps are kept, so that their number stands still.
    dumped_at = [record.dumps[-1][0] if record.dumps else -math.inf for record in live]
    dumped_at = [at for at in dumped_at if at >= stall.since]
    ended = sum(1 for record in gen.ranks.values() if not record.is_live)
    phase, typical_s = _pace_of(gen, diagnosis)
    return StallContext(
        phase=phase,
        typical_s=typical_s,
        starting=stall.why is Why.STARTUP,
        no_heartbeat=stall.why is Why.UNCHANGED,
        all_still=len(live) > 1 and max(r.moved_at for r in live) < now - STILL_AFTER_S,
        dumps_have=len(dumped_at),
        dumps_want=len(live),
        evidence=(sum(dumped_at), ended, len(live), len(gen.ranks)),
    )


def _pace_of(gen: Generation, diagnosis: Diagnosis | None) -> tuple[str, float]:
    """Give the phase and the typical step of the top suspect."""
    record: RankRecord | None = None
    if diagnosis is not None and diagnosis.suspects:
        record = gen.ranks.get(diagnosis.suspects[0].rank)
    beat = record.vitals.beat if record else None
    pace = gen.paces.get(beat.phase) if beat else None
    if pace is not None and pace.is_learned:
        return "", pace.typical_s
    return beat.phase if beat else "", gen.pace("").typical_s
