"""A connection between two ranks is stalled: one end sends the same data again and again, and the
other end, which is alive, never gets it.

Small messages may pass all the time, so that the job starts and then waits in its first large call.
If the network interfaces of both ends have different MTUs, that is the reason. Else the path
between them loses packets. Where the whole network is cut, every rank has such a connection and
none is to blame: then this cause is silent.

Retransmissions alone show nothing: each answer ends them. A connection counts if nothing at all got
through between two dumps, and the kernel waits longer before each try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchtower.diagnosis.accusation import CANDIDATE, MAX_QUOTED, Accusation, Doubt, Reason, Tier
from watchtower.diagnosis.advice import TRY_OTHER_NODES
from watchtower.diagnosis.paths import Path
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import peers_reason
from watchtower.diagnosis.words import node_of
from watchtower.wire.verdict import Cause
from watchtower.writing.text import clean, format_duration

STALLED_WEIGHT, MTU_WEIGHT = 0.85, 0.8

LONELY_PATH = 2
"""Addresses of a job that has one path only: where it is cut, no other path can show that."""

PATH_BESIDE = Doubt(
    "path_beside",
    CANDIDATE,
    "another rank, which is on neither end of the connection, does not wait",
)

COMPARE_MTUS = (
    "compare the MTU of both interfaces with those of the other nodes, and correct the odd one: "
    "`ip link show dev {interface}` on {node} and on {peer_node}"
)
TRY_LARGE_PACKETS = (
    "try the path with large packets on {node}: `ping -M do -s {payload} {peer_address}`; if only "
    "small ones are answered, a switch or a tunnel on the path has a smaller MTU"
)
CHECK_PATH = (
    "check the ports of the switches between {node} and {peer_node}, and firewalls: only this "
    "path loses packets"
)

HEADERS_BYTES = 28
"""Bytes of the headers of IPv4 and ICMP in a packet of `ping`."""

USUAL_MTU = 1500


def find_mtu(picture: Picture) -> Accusation | None:
    """Accuse both ends of stalled connections whose interfaces have different MTUs."""
    found = [each for each in picture.paths if each.has_two_mtus]
    return _accuse(picture, Cause.MISCONFIGURED, found) if found else None


def find_lost(picture: Picture) -> Accusation | None:
    """Accuse both ends of stalled connections, if there are other paths that are not cut."""
    found = picture.paths
    if not found or any(each.has_two_mtus for each in found):
        return None
    if len(picture.addresses) > LONELY_PATH:
        common = frozenset.intersection(*(each.ends for each in found))
        found = found if common else ()
    return _accuse(picture, Cause.FABRIC_FAULT, found) if found else None


def _accuse(picture: Picture, cause: Cause, paths: Sequence[Path]) -> Accusation:
    counted = Counter(item.rank for each in paths for item in (each.sender, each.receiver))
    suspects = {item.rank: item for each in paths for item in (each.sender, each.receiver)}
    ordered = tuple(sorted(suspects.values(), key=lambda item: (-counted[item.rank], item.rank)))
    first = paths[0]
    reasons = [
        Reason(
            "network",
            STALLED_WEIGHT,
            (each.sender.rank, each.receiver.rank),
            _write_connection(each),
        )
        for each in paths[:MAX_QUOTED]
    ]
    if cause is Cause.MISCONFIGURED:
        ends = (first.sender.rank, first.receiver.rank)
        reasons.append(Reason("difference", MTU_WEIGHT, ends, _write_mtus(first)))
    is_beside = any(item.rank not in suspects for item in picture.sinks)
    mtus = _write_mtus(first) if cause is Cause.MISCONFIGURED else ""
    return Accusation(
        cause=cause,
        tier=Tier.CANNOT_ANSWER,
        suspects=ordered,
        reasons=(*reasons, *peers_reason(picture, ordered)),
        doubts=(PATH_BESIDE,) if is_beside else (),
        why=lambda position: _write_role(paths, position),
        summary="; ".join(filter(None, (_write_connection(first), mtus))),
        advice=(
            (COMPARE_MTUS, TRY_LARGE_PACKETS)
            if cause is Cause.MISCONFIGURED
            else (TRY_LARGE_PACKETS, CHECK_PATH, TRY_OTHER_NODES)
        ),
        names={
            "node": node_of(first.sender),
            "peer_node": node_of(first.receiver),
            "peer_address": clean(first.far.address, 64),
            "interface": clean(first.near.interface, 32) or "INTERFACE",
            "payload": max(first.near.mtu or USUAL_MTU, HEADERS_BYTES) - HEADERS_BYTES,
        },
    )


def _write_role(paths: Sequence[Path], position: Position) -> str:
    for each in paths:
        if position.rank == each.sender.rank:
            peer = each.receiver
            return f"sends to rank {peer.rank} ({node_of(peer)}) and gets no answer"
    for each in paths:
        if position.rank == each.receiver.rank:
            peer = each.sender
            return f"does not get what rank {peer.rank} ({node_of(peer)}) sends"
    return ""


def _write_connection(path: Path) -> str:
    """Return "rank 2 (n0, 10.0.0.3) gets no answer from rank 3 (n1, 10.0.0.4): ..."."""
    sent, near, far = path.connection, path.near, path.far
    return (
        f"rank {path.sender.rank} ({node_of(path.sender)}, {clean(near.address, 64)}) gets no "
        f"answer from rank {path.receiver.rank} ({node_of(path.receiver)}, "
        f"{clean(far.address, 64)}): the kernel has sent the same data {sent.tries + 1} times and "
        f"waits {format_duration(sent.pause_s)} before the next try, although the connection is "
        "open"
    )


def _write_mtus(path: Path) -> str:
    """Return "the MTUs differ: eth0 of rank 2 (n0) has 9000, eth0 of rank 3 (n1) has 1500"."""
    ends = ((path.sender, path.near), (path.receiver, path.far))
    each = [
        f"{clean(address.interface, 32) or 'the interface'} of rank {item.rank} "
        f"({node_of(item)}) has {address.mtu}"
        for item, address in ends
    ]
    return f"the MTUs differ: {', '.join(each)}"
