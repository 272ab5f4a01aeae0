"""The picture of a case: every rank in its position, and what follows from all of them together.

It is the one argument of a cause. Deaths, splits and the odd rank are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from watchtower.diagnosis.blame import Blamed, Strength, find_blamed
from watchtower.diagnosis.blame_table import BY_FAMILY
from watchtower.diagnosis.deaths import Death, find_deaths, find_ended_from_outside
from watchtower.diagnosis.first_hand import FirstHand, find_first_hand
from watchtower.diagnosis.paths import Addresses, Path, find_paths, index_addresses
from watchtower.diagnosis.position import Position, take_position
from watchtower.diagnosis.separation import Separation, find_separations
from watchtower.diagnosis.settings import Difference, find_differences
from watchtower.diagnosis.waits.graph import EndKind
from watchtower.diagnosis.waits.mismatches import MissingSend, Split, find_missing_sends, find_split
from watchtower.diagnosis.waits.odd_rank import OddRank, find_odd_rank
from watchtower.diagnosis.waits.positions import Positions
from watchtower.diagnosis.waits.sinks import Sinks, find_sinks
from watchtower.diagnosis.waits.sources import GAVE_UP, find_waits
from watchtower.evidence.case import Case
from watchtower.evidence.collective_log import NCCL
from watchtower.evidence.gpus import (
    GPU_ECC,
    GPU_PATTERN,
    EccErrors,
    GpuPattern,
    GpuUse,
    find_ecc_errors,
    find_gpu_use,
)
from watchtower.evidence.kernel import HELD, SOCKETS
from watchtower.evidence.launchers import Meeting, read_meeting
from watchtower.evidence.observed import Observed
from watchtower.evidence.shared_gpus import SharedGpu, find_shared_gpus
from watchtower.evidence.threads import index_stacks
from watchtower.wire.observations import Observation

CPU_LIMIT = "cpu_limit"
"""Family of the observation that a CPU limit stops a rank. An agent measures it every 10 s."""

CPU_LIMIT_FRESH_S = 30.0
"""An older one says nothing about the samples of now."""


class Picture(Positions):
    """All positions of a case and what follows from them."""

    @cached_property
    def unlogged(self) -> tuple[Position, ...]:
        """Live ranks with a stack whose collective logs were not read, although those of others
        were: any of them may be behind.
        """
        logs = self.collective_logs
        if logs is None:
            return ()
        has_any = any(logs.of_rank.values())
        return tuple(
            item
            for item in self.live
            if item.stack is not None
            and (item.rank not in logs.of_rank or (has_any and item.log_failure))
        )

    @cached_property
    def holed(self) -> tuple[Position, ...]:
        """Live ranks that may wait in a call of which their collective log does not show whether it
        is over: any of them may be elsewhere.
        """
        logs = self.collective_logs
        if logs is None:
            return ()
        torn = {digest for digest, log in logs.by_digest.items() if log.may_wait_in_hole}
        if not torn:
            return ()
        return tuple(i for i in self.live if not torn.isdisjoint(logs.of_rank.get(i.rank, ())))

    @cached_property
    def uses_devices(self) -> bool:
        """Whether collectives are queued on devices, as far as known."""
        logs = self.collective_logs
        is_queued = logs is not None and any(g.library == NCCL for g in logs.groups.values())
        return is_queued or any(item.waits_for_device for item in self.live)

    @cached_property
    def sinks(self) -> tuple[Position, ...]:
        """Ranks elsewhere that the others may be waiting for: those to accuse.

        Of ranks with collective logs only those that others wait for: a rank that is elsewhere and
        holds up no other is no suspect. Without those that may as well wait for one of the rest.
        """
        return self._sinks.chosen

    @cached_property
    def secondary(self) -> tuple[Position, ...]:
        """Ranks elsewhere that may wait for one of `sinks` in a call that nothing shows."""
        return self._sinks.secondary

    @cached_property
    def uncertain(self) -> frozenset[int]:
        """Ranks elsewhere of which something speaks against that the others wait for them."""
        return self._sinks.uncertain

    @cached_property
    def _sinks(self) -> Sinks:
        return find_sinks(self)

    @cached_property
    def entered(self) -> frozenset[int]:
        """Ranks that wait, and whose collective logs show that they have entered each call that
        they wait in. A call that is only queued is not entered.
        """
        graph = self.graph
        if graph is None:
            return frozenset()
        certain = [point.certain for point in graph.points]
        return frozenset(
            rank
            for rank, points in graph.blocked_in.items()
            if all(certain[index] for index in points)
        )

    @cached_property
    def points_to_network(self) -> bool:
        """Whether something measured shows that what is between the ranks holds up all of them.

        Collective logs show that all have entered their calls, or all GPUs wait in a kernel, or all
        hosts wait at sockets. That all are at one line shows none of these.
        """
        ends = self.graph.ends if self.graph is not None else ()
        if ends and all(end.kind is EndKind.POINT and end.certain for end in ends):
            return True
        uses = [self.gpu_use(item.rank) for item in self.live]
        if uses and all(use is not None and use.pattern is GpuPattern.SPINNING for use in uses):
            return True
        at_sockets = all(item.wait.wait_class in SOCKETS for item in self.live)
        return not ends and bool(self.live) and at_sockets

    @property
    def is_suspended(self) -> bool:
        """Whether every live rank is stopped or traced: a status, not a fault."""
        return bool(self.live) and all(item.state in HELD for item in self.live)

    @cached_property
    def deaths(self) -> tuple[Death, ...]:
        """Ranks that have ended, the earliest first."""
        return find_deaths(self, self._observed)

    @cached_property
    def first_hand(self) -> FirstHand:
        """Deaths that explain the others; none of a job that was cancelled."""
        if self.is_cancelled:
            return FirstHand()
        return find_first_hand(self, self.deaths, self.ended_from_outside, self.gave_up)

    @cached_property
    def ended_from_outside(self) -> tuple[Death, ...]:
        """Ranks that were ended on purpose, with most of the job and for no earlier death."""
        return find_ended_from_outside(self.deaths, len(self.by_rank), self.case.settle_s)

    @cached_property
    def is_cancelled(self) -> bool:
        """Whether the whole job was ended on purpose: no rank is left.

        Ranks that died of the broken connection, left with 0 or had to be killed do not count
        against it; any death that could have a reason of its own does, unless the signal came
        before it.
        """
        is_over = 0 < len(self.by_rank) == len(self.deaths)
        return is_over and bool(self.ended_from_outside)

    @cached_property
    def gave_up(self) -> tuple[Position, ...]:
        """Ranks that waited in this stall until they, or their launcher, gave up."""
        return self.shown_by(GAVE_UP)

    @cached_property
    def odd_rank(self) -> OddRank | None:
        """The one rank that differs from the others in its cycle."""
        return find_odd_rank(self)

    @cached_property
    def meeting(self) -> Meeting | None:
        """What the launchers of a job without ranks show; None for any other job."""
        return read_meeting(self.case.launchers) if self.case.launchers else None

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Settings in which the ranks differ, although they must be equal."""
        return tuple(find_differences(self))

    @cached_property
    def split(self) -> Split | None:
        """Ranks that are in another call than the rest of their group."""
        return find_split(self, self.odd_rank)

    def observed(self, rank: int, *families: str) -> tuple[Observation, ...]:
        """Return what collectors observed about a rank's process and its devices.

        Without families: everything.
        """
        evidence = self.by_rank[rank].evidence
        seen = self._observed.get(evidence.node)
        return seen.about(evidence.pid, families) if seen is not None else ()

    def gpu_use(self, rank: int) -> GpuUse | None:
        """Return what the GPU of a rank does; None if that is not known."""
        return find_gpu_use(self.observed(rank, GPU_PATTERN))

    def slowed_gpu(self, rank: int) -> GpuUse | None:
        """Return the GPU of a rank if it is known to work with reduced clocks."""
        use = self.gpu_use(rank)
        return use if use is not None and use.pattern is GpuPattern.THROTTLED else None

    def ecc_errors(self, rank: int) -> EccErrors | None:
        """Return the errors of a GPU's memory that increase now and may slow down a rank."""
        return find_ecc_errors(self.observed(rank, GPU_ECC))

    def cpu_limit(self, rank: int) -> Observation | None:
        """Return the observation that a CPU limit often stops a rank; None without a fresh one."""
        found = self.observed(rank, CPU_LIMIT)
        return next((each for each in found if each.age_s <= CPU_LIMIT_FRESH_S), None)

    @cached_property
    def blamed(self) -> tuple[Blamed, ...]:
        """What collectors observed that blames a device, process, link or node of the job."""
        return find_blamed(self, BY_FAMILY)

    def explained(self, rank: int) -> tuple[Blamed, ...]:
        """Return what collectors observed that says why this rank does not go on."""
        return tuple(
            each
            for each in self.blamed
            if each.row.strength is Strength.EXPLAINS and any(r.rank == rank for r in each.ranks)
        )

    @cached_property
    def shared_gpus(self) -> tuple[SharedGpu, ...]:
        """GPUs that several ranks use, although others of their node are free for the job."""
        ranks: dict[str, dict[int, int]] = {}
        for item in self.case.ranks:
            if item.pid is not None:
                ranks.setdefault(item.node, {})[item.pid] = item.rank
        return tuple(
            found
            for node in self.case.nodes
            if node.node in ranks
            for found in find_shared_gpus(node.node, node.observations, ranks[node.node])
        )

    @cached_property
    def _observed(self) -> Mapping[str, Observed]:
        nodes = (node for node in self.case.nodes if node.observations)
        return {node.node: Observed(node.observations) for node in nodes}

    @cached_property
    def addresses(self) -> Addresses:
        """The ranks of the job by the addresses at which they have connections."""
        return index_addresses(self)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The stalled connections between live ranks, those with most tries first."""
        return find_paths(self)

    @cached_property
    def separations(self) -> tuple[Separation, ...]:
        """What separates ranks from the others while all wait, the strongest evidence first."""
        return find_separations(self)

    @property
    def deciding_separations(self) -> tuple[Separation, ...]:
        """The separations because of which the verdict is not `symmetric_hang`."""
        return tuple(each for each in self.separations if each.decides)

    @cached_property
    def missing_sends(self) -> tuple[MissingSend, ...]:
        """Messages that were never sent although their sender has gone on."""
        return find_missing_sends(self, self.odd_rank)


def take_picture(case: Case) -> Picture:
    """Read every rank, and ask every source which ranks wait."""
    stacks = index_stacks(case.stacks)
    by_rank = {evidence.rank: take_position(case, evidence, stacks) for evidence in case.ranks}
    return find_waits(Picture(case, by_rank, stacks=stacks))
