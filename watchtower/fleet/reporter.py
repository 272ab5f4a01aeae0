"""The agent that reported a rank last, and how long the rank belongs to it.

The name of a node proves nothing, because every holder of an agent's token can report under it. The
boot of the node's kernel is different: an agent elsewhere does not know it. The process ids of two
boots cannot be compared, so an agent of another boot knows nothing about these processes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """One agent at its last report. The ranks of that report share this value."""

    agent_id: str
    boot: str
    """Boot of the node's kernel; empty from an agent of an earlier release."""
    contained: bool
    """Whether the agent sees only the processes of its own container."""
    seen_at: float
    interval_s: float
    held_until: float
    """Until this time, no other agent with the same node name may report its ranks."""
    silent_from: float
    """From this time, the agent counts as silent. Until then, no agent of another boot may report
    its ranks."""

    def may_be_followed_by(self, other: Reporter) -> bool:
        """Return whether `other` may be this agent, or a later one on the same node."""
        return not self.boot or self.boot == other.boot

    def holds_against(self, other: Reporter, now: float) -> bool:
        """Return whether the ranks of this agent still belong to it, and `other` is not it."""
        if other.agent_id == self.agent_id:
            return False
        return now < (self.held_until if self.may_be_followed_by(other) else self.silent_from)
