"""The launchers of a job that has no ranks yet: they wait for other nodes, or for ranks there."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from watchtower.evidence.case import LauncherEvidence
from watchtower.wire.report import FOR_RANKS, WaitingLauncher

MAX_LAUNCHERS = 16_384
"""Launchers of one attempt: one for each node of the largest job."""


@dataclass(slots=True)
class Launchers:
    """The launchers of one attempt that wait, by node."""

    waiting: dict[str, tuple[WaitingLauncher, float]] = field(default_factory=dict)
    """Each with the time of its last report."""
    left_at: float | None = None
    """When the last one ended, or started its ranks. None while one waits, or if none was seen."""

    @property
    def has_waited(self) -> bool:
        """Whether a launcher waits, or has waited."""
        return bool(self.waiting) or self.left_at is not None

    def note(self, node: str, launcher: WaitingLauncher, now: float) -> None:
        """Record a launcher that waits now."""
        known = self.waiting.get(node)
        if (
            known is not None
            and known[1] == now
            and (launcher.waits_for == FOR_RANKS or launcher.ended)
        ):
            return  # the one that it has started, or that was started after it, says more
        if known is not None or len(self.waiting) < MAX_LAUNCHERS:
            self.waiting[node] = launcher, now
            self.left_at = None

    def leave(self, node: str, now: float) -> None:
        """Record that no launcher of a node waits any more."""
        if self.waiting.pop(node, None) is not None and not self.waiting:
            self.left_at = now

    def list_on_nodes(self) -> set[str]:
        """Return the nodes on which launchers wait that start ranks there."""
        return {n for n, (each, _) in self.waiting.items() if each.waits_for != FOR_RANKS}

    def list_evidence(
        self, now: float, silent: Set[str] = frozenset()
    ) -> tuple[LauncherEvidence, ...]:
        """Return the launchers with their ages now, by node, without those of silent nodes."""
        return tuple(
            LauncherEvidence(
                node=node,
                launcher=replace(each, waits_s=each.waits_s + max(0.0, now - seen_at)),
            )
            for node, (each, seen_at) in sorted(self.waiting.items())
            if node not in silent
        )
