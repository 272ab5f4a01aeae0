"""A rank waits for the network, and not for another rank: an object store, a service, a proxy."""

from __future__ import annotations

from watchtower.core.case import Case
from watchtower.core.diagnosis.accusation import accuse_by_stack, doubt_crowds
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.standing import Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause, Evidence

SOCKET_WEIGHT = 0.45

UNNAMED = frozenset({FrameClass.USER, FrameClass.NONE})


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse the ranks that stay in a network call."""
    remote = [item for item in standings.behind if _waits_for_network(item)]
    if not remote:
        return None
    first = remote[0]
    node = clean(first.evidence.node, 64) or "its node"
    peer = clean(first.kernel.target, 120)
    return accuse_by_stack(
        standings,
        remote,
        cause=Cause.NETWORK_WAIT,
        extra=[_socket_evidence(item) for item in remote[:3]],
        ceiling=doubt_crowds(standings, remote),
        next_steps=(
            f"look at the other end of {peer} from {node}"
            if peer
            else f"find which service rank {first.rank} on {node} talks to, and whether it answers",
            "give that call a timeout and a retry",
        ),
    )


def _waits_for_network(standing: Standing) -> bool:
    if not standing.asleep or not standing.unchanged:
        return False
    if standing.frame_class is FrameClass.NETWORK:
        return standing.wait.wait_class in {"network", "local", "poll", "lock", ""}
    return standing.frame_class in UNNAMED and standing.wait.wait_class == "network"


def _socket_evidence(standing: Standing) -> Evidence:
    return Evidence(
        source="network",
        text=f"rank {standing.rank}: {_name_thread(standing)} stays in a network call",
        ranks=str(standing.rank),
        weight=SOCKET_WEIGHT,
    )


def _name_thread(standing: Standing) -> str:
    dump, stack = standing.last_dump, standing.stack
    threads = dump.threads if dump else ()
    inside = [thread for thread in threads if stack and thread.digest == stack.digest]
    named = inside and not any(thread.main for thread in inside)
    return f"its thread `{clean(inside[0].name, 60)}`" if named else "its main thread"
