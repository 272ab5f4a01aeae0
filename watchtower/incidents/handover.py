"""Whether a system that drains nodes may act on what incidents say about a node.

watchtower itself drains and restarts nothing. It hands a verdict over, and these guards decide
when: the same answer for everybody who asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchtower.wire.verdict import Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What must hold before a system acts."""

    domains: frozenset[Domain] = frozenset({Domain.GPU, Domain.NODE})
    """Whom a verdict calls. Other verdicts blame a program, a network or a person."""
    min_confidence: float = 0.8
    max_age_s: float = 86_400.0
    """Older incidents are forgotten: by then a person has seen to the node."""
    settled_s: float = 60.0
    """Seconds since the opening. Until then evidence still arrives, and the verdict may change:
    a node that is restarted at once takes it along."""
    max_nodes_percent: float = 5.0
    """Share of the nodes that may be blamed within `max_age_s`, at least one node. If more are,
    something else than nodes is broken, such as a driver or a switch."""
    observes: bool = False
    """Only say what would be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """What an incident says, as far as it matters here."""

    incident: str
    cause: str
    domain: Domain
    confidence: float
    nodes: tuple[str, ...]
    """Nodes of all ranks that the verdict names."""
    age_s: float
    is_shadow: bool = False
    was_right: bool | None = None
    """What a person answered about the verdict; None without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What is handed over about a node."""

    acts: bool
    reason: str
    """Which incident blames the node, as the reason for a drain; empty if none does."""
    held: tuple[str, ...] = ()
    """Why nothing is to be done although an incident blames the node."""


def decide(
    node: str,
    incidents: Iterable[Blamed],
    *,
    node_count: int,
    is_silenced: bool,
    guards: Guards,
) -> Handover:
    """Return what to do about a node. `incidents` are those of all nodes.

    `is_silenced`: a person has silenced the node, and so overrides this.
    """
    recent = [
        each
        for each in incidents
        if each.age_s <= guards.max_age_s and each.domain in guards.domains
    ]
    own = min((each for each in recent if node in each.nodes), key=_age, default=None)
    if own is None:
        return Handover(acts=False, reason="")
    held = list(_find_doubts(own, guards))
    if is_silenced:
        held.append("a person has silenced the node")
    allowed = max(1, int(node_count * guards.max_nodes_percent / 100))
    first = _order_nodes(recent, guards)[:allowed]
    if not held and node not in first:
        held.append(
            f"{allowed} of {node_count} nodes are blamed already: more than nodes is broken"
        )
    if guards.observes:
        held.append("observe mode")
    reason = f"watchtower: {own.cause} incident {own.incident}"
    return Handover(acts=not held, reason=reason, held=tuple(held))


def _age(incident: Blamed) -> float:
    return incident.age_s


def _find_doubts(incident: Blamed, guards: Guards) -> Iterable[str]:
    """Yield what speaks against an action because of this incident."""
    if incident.is_shadow:
        yield "the incident is in shadow mode"
    if incident.was_right is False:
        yield "a person has answered that the verdict was wrong"
    if incident.confidence < guards.min_confidence:
        yield f"the confidence is {incident.confidence:.0%}, below {guards.min_confidence:.0%}"
    if len(set(incident.nodes)) > 1:
        yield f"the verdict names ranks on {len(set(incident.nodes))} nodes"
    if incident.age_s < guards.settled_s:
        yield f"evidence may still arrive: the incident is {incident.age_s:.0f} s old"


def _order_nodes(incidents: Sequence[Blamed], guards: Guards) -> list[str]:
    """Return the nodes that may be acted upon, the one that was blamed first comes first."""
    oldest_first = sorted(incidents, key=_age, reverse=True)
    sure = (each for each in oldest_first if not list(_find_doubts(each, guards)))
    return list(dict.fromkeys(each.nodes[0] for each in sure if each.nodes))
