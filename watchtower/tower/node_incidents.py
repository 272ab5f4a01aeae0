"""Counts the incidents that each node was to blame for, for an alert about repeated ones, and those
that name ranks on it.

A node is to blame if every rank that the verdicts named is on it, and the first verdict says that
nodes, GPUs or the network must be repaired. Hangs of the code of a user say nothing about a node:
all ranks of a job on one node are on it, whatever hung them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from watchtower.incidents.incident import Incident
from watchtower.incidents.incident_filter import places_of
from watchtower.store.values import Blame, Named
from watchtower.tower.incident_events import IncidentEvent
from watchtower.views.node import NodeCounts
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import Domain

DOMAINS = frozenset({Domain.NODE, Domain.GPU, Domain.NETWORK})
"""Whom to call about an incident that counts."""

DAY_S = 86_400.0
WINDOWS = {"7d": 7 * DAY_S, "30d": 30 * DAY_S}
"""Names of the windows in the metric, and their lengths in seconds."""

MAX_BLAMES = 4096
"""Incidents that are counted. Above it, the oldest one is forgotten."""

MAX_NAMED = 4096
"""Incidents whose named nodes are counted: 136 a day. Above it, the oldest one is forgotten."""


class NodeIncidents:
    """The incidents of the last 30 days that a node was to blame for, and those that name its
    ranks. A listener of incidents."""

    def __init__(self, stored: Iterable[Blame], named: Iterable[Named] = ()) -> None:
        """`stored` and `named` are those of the tower's earlier runs, oldest first."""
        # Not in one mapping: many hangs of the code of users must not displace a blame.
        self._named = {each.incident: each for each in named}
        self._blames = {blame.incident: blame for blame in stored if blame.domain in DOMAINS}

    def note(self, event: IncidentEvent) -> None:
        """Count an incident, or forget it if its verdict was corrected."""
        incident = event.incident
        self._note_named(incident)
        self._blames.pop(incident.id, None)
        if not _counts(incident):
            return
        self._blames[incident.id] = blame_of(incident)
        if len(self._blames) > MAX_BLAMES:
            oldest = min(self._blames.values(), key=lambda blame: blame.opened_at)
            del self._blames[oldest.incident]

    def _note_named(self, incident: Incident) -> None:
        self._named.pop(incident.id, None)
        nodes = tuple(dict.fromkeys(node for node, _ in places_of(incident)))
        if not nodes or incident.shadow or is_drill(incident.job):
            return
        self._named[incident.id] = Named(
            incident=incident.id, nodes=nodes, opened_at=incident.opened_at
        )
        if len(self._named) > MAX_NAMED:
            del self._named[min(self._named.values(), key=lambda each: each.opened_at).incident]

    def count_named(self, window_s: float, wall: float) -> Counter[str]:
        """Return the number of incidents of the window whose verdicts name ranks on a node."""
        recent = (each for each in self._named.values() if wall - each.opened_at < window_s)
        return Counter(node for each in recent for node in each.nodes)

    def of_30_days(self, wall: float) -> NodeCounts:
        """Return the incidents of the last 30 days, by node. `wall`: UNIX seconds."""
        window_s = WINDOWS["30d"]
        return NodeCounts(self.count(window_s, wall), self.count_named(window_s, wall))

    def count(self, window_s: float, wall: float) -> Counter[str]:
        """Return the number of incidents of each node that opened in the last `window_s` seconds.

        `wall`: UNIX seconds.
        """
        return Counter(
            blame.node for blame in self._blames.values() if wall - blame.opened_at < window_s
        )


def blame_of(incident: Incident) -> Blame:
    """Return the node to blame for an incident."""
    return Blame(
        incident=incident.id,
        node=incident.only_node,
        domain=incident.identity.domain,
        opened_at=incident.opened_at,
    )


def _counts(incident: Incident) -> bool:
    is_blamed = bool(incident.only_node) and incident.identity.domain in DOMAINS
    return is_blamed and not incident.shadow and not is_drill(incident.job)
