"""A rank waits for the network, and not for another rank: an object store, a service, a proxy."""

from __future__ import annotations

from watchtower.core.diagnosis.accusation import accuse_by_stack, doubt_crowds
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause, Evidence

SOCKET_WEIGHT = 0.45

UNNAMED = frozenset({FrameClass.USER, FrameClass.NONE})


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks that stay in a network call."""
    remote = [item for item in picture.sinks if _waits_for_network(item)]
    if not remote:
        return None
    first = remote[0]
    node = clean(first.evidence.node, 64) or "its node"
    peer = clean(first.kernel.target, 120)
    return accuse_by_stack(
        picture,
        remote,
        cause=Cause.NETWORK_WAIT,
        extra=[_socket_evidence(item) for item in remote[:3]],
        ceiling=doubt_crowds(picture, remote),
        next_steps=(
            f"look at the other end of {peer} from {node}"
            if peer
            else f"find which service rank {first.rank} on {node} talks to, and whether it answers",
            "give that call a timeout and a retry",
        ),
    )


def _waits_for_network(position: Position) -> bool:
    if not position.asleep or not position.unchanged:
        return False
    if position.frame_class is FrameClass.NETWORK:
        return position.wait.wait_class in {"network", "local", "poll", "lock", ""}
    return position.frame_class in UNNAMED and position.wait.wait_class == "network"


def _socket_evidence(position: Position) -> Evidence:
    return Evidence(
        source="network",
        text=f"rank {position.rank}: {_name_thread(position)} stays in a network call",
        ranks=str(position.rank),
        weight=SOCKET_WEIGHT,
    )


def _name_thread(position: Position) -> str:
    dump, stack = position.last_dump, position.stack
    threads = dump.threads if dump else ()
    inside = [thread for thread in threads if stack and thread.digest == stack.digest]
    named = inside and not any(thread.main for thread in inside)
    return f"its thread `{clean(inside[0].name, 60)}`" if named else "its main thread"
