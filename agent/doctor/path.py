"""`watchtower-agent path`: what gets through between two nodes, packet by packet.

One node answers, the other one asks: `watchtower doctor --between NODE NODE` starts both. Small
packets show a firewall or a route that is missing. Packets as large as the interface allows, which
may not be cut on the way, show an MTU black hole: small ones arrive, and a job hangs at its first
large message. Both are processes of their own that end after some seconds. The answering one
returns each packet with its token once, as it is: it never sends more than it has received.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from agent.doctor.check import Finding, fail, ok, warn
from watchtower.wire.checks import CheckResult, CheckState, find_worst

SIOCGIFADDR, SIOCGIFMTU = 0x8915, 0x8921
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, IP_MTU = 10, 3, 14
"""Of Linux. With PROBE a packet may not be cut, and what the kernel believes of the path is left
out."""

HEADERS = 28
"""Bytes of the headers of IPv4 and UDP in the MTU."""

SMALL = 1000
"""Bytes of a small message. It fits everywhere."""

LEAST_MTU, MOST_MTU = 576, 65_535

ANSWERS_S, MAX_ANSWERS = 30.0, 512
"""Seconds and packets after which the answering process ends. A test has some fifty packets."""

COUNT, WAIT_S, STEP_WAIT_S = 5, 1.0, 0.3
"""Packets of one size, the seconds for their answers, and those of one step of the search."""

CONNECT_S = 2.0
"""Seconds for a TCP connection, the kind that a job uses to meet."""

MAX_INTERFACES = 64
"""Interfaces with an address. A node has up to 20, with those of containers more."""

TOKEN_BYTES = 16
"""Bytes of the token: other programs cannot guess it in 30 s."""

_NUMBER = struct.Struct("!I")


class Offer(msgspec.Struct):
    """The first line of the answering process."""

    port: int
    token: str
    addresses: list[tuple[str, str, int]]
    """Interface, address and MTU of each interface with an IPv4 address."""


_OFFERS = msgspec.json.Decoder(Offer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What got through to one address."""

    interface: str
    """Of the other node."""
    address: str
    mtu: int
    """Of this node's interface towards it; 0 without a route."""
    far_mtu: int
    small: int = 0
    """Answers to `COUNT` small packets."""
    large: int = 0
    """Answers to `COUNT` packets of the smaller MTU of both ends."""
    largest: int = 0
    """Bytes of the largest packet that got through, if no large one did."""
    connects: bool = False


def list_addresses(only: str = "") -> list[tuple[str, str, int]]:
    """Return the interfaces of this node with an IPv4 address, without the loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex()[:MAX_INTERFACES]:
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = socket.inet_ntoa(fcntl.ioctl(asked, SIOCGIFADDR, request)[20:24])
                mtu = struct.unpack_from("i", fcntl.ioctl(asked, SIOCGIFMTU, request), 16)[0]
            except OSError:
                continue  # without an address
            if not address.startswith("127.") and only in ("", name):
                found.append((name, address, mtu))
    return found


def answer(interface: str = "", for_s: float = ANSWERS_S) -> int:
    """Print an offer, and return packets until standard input ends or the time is over."""
    token = secrets.token_hex(TOKEN_BYTES // 2)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as met,
        _open_datagrams() as packets,
    ):
        met.bind(("", 0))
        met.listen(8)  # the kernel accepts: nothing is read
        port = met.getsockname()[1]
        packets.bind(("", port))
        offer = Offer(port=port, token=token, addresses=list_addresses(interface))
        print(msgspec.json.encode(offer).decode(), flush=True)
        _return_packets(packets, token.encode(), time.monotonic() + for_s)
    return 0


def _return_packets(packets: socket.socket, token: bytes, until: float) -> None:
    for _ in range(MAX_ANSWERS):
        left = until - time.monotonic()
        ready, _, _ = select.select([packets, sys.stdin], [], [], max(0.0, left))
        if not ready or (sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096)):
            return
        if packets in ready:
            packet, sender = packets.recvfrom(MOST_MTU)
            if packet[:TOKEN_BYTES] == token:
                _send(packets, packet, sender)


def _open_datagrams() -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
    return opened


def _send(packets: socket.socket, packet: bytes, to: tuple[str, int]) -> None:
    try:
        packets.sendto(packet, to)
    except OSError:
        return  # larger than the interface allows, or no route: it gets no answer


def probe(offer: Offer) -> Iterator[Probed]:
    """Yield what gets through to each address of an offer."""
    for interface, address, far_mtu in offer.addresses[:MAX_INTERFACES]:
        yield _probe_one(offer, interface, address, min(max(far_mtu, LEAST_MTU), MOST_MTU))


def _probe_one(offer: Offer, interface: str, address: str, far_mtu: int) -> Probed:
    with _open_datagrams() as packets:
        try:
            packets.connect((address, offer.port))
            mtu = packets.getsockopt(socket.IPPROTO_IP, IP_MTU)
        except OSError:
            return Probed(interface=interface, address=address, mtu=0, far_mtu=far_mtu)
        token, size = offer.token.encode(), min(mtu, far_mtu)
        small = _exchange(packets, token, SMALL + HEADERS, COUNT, WAIT_S)
        large = _exchange(packets, token, size, COUNT, WAIT_S) if small else 0
        largest = _find_largest(packets, token, size) if small and not large else 0
    return Probed(
        interface=interface,
        address=address,
        mtu=mtu,
        far_mtu=far_mtu,
        small=small,
        large=large,
        largest=largest,
        connects=_can_connect(address, offer.port),
    )


def _exchange(packets: socket.socket, token: bytes, size: int, count: int, wait_s: float) -> int:
    """Send packets of this size with their headers; return how many came back."""
    wanted = set()
    for _ in range(count):
        number = secrets.token_bytes(_NUMBER.size)
        packet = (token + number).ljust(max(size - HEADERS, TOKEN_BYTES + _NUMBER.size), b"\0")
        wanted.add(packet)
        try:
            packets.send(packet)
        except OSError:
            continue  # refused by the other node, or larger than allowed
    came: set[bytes] = set()
    until = time.monotonic() + wait_s
    while len(came) < count and (left := until - time.monotonic()) > 0:
        if not select.select([packets], [], [], left)[0]:
            break
        try:
            packet = packets.recv(MOST_MTU)
        except OSError:
            continue
        came |= {packet} & wanted
    return len(came)


def _find_largest(packets: socket.socket, token: bytes, size: int) -> int:
    """Return the size of the largest packet that gets through, by halving."""
    works, fails = SMALL + HEADERS, size
    while fails - works > 1:
        middle = (works + fails) // 2
        if _exchange(packets, token, middle, 2, STEP_WAIT_S):
            works = middle
        else:
            fails = middle
    return works


def _can_connect(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), CONNECT_S):
            return True
    except OSError:
        return False


def judge(found: Probed) -> Iterator[Finding]:
    """Yield what is wrong with a path, or that nothing is."""
    if not found.mtu:
        yield fail("there is no route", "`ip route get " + found.address + "`")
        return
    firewall = "`nft list ruleset` on both nodes, security groups, and the switches between them"
    if not found.small and not found.connects:
        yield fail("nothing gets through, neither UDP nor TCP", firewall)
        return
    if not found.small:
        yield warn("TCP connects, and UDP does not get through", firewall)
        return
    if not found.connects:
        yield fail("UDP gets through, and TCP does not connect", firewall)
    yield from _judge_sizes(found)


def _judge_sizes(found: Probed) -> Iterator[Finding]:
    if found.mtu != found.far_mtu:
        text = f"its MTU is {found.far_mtu}, and that of this node {found.mtu}"
        yield fail(text, f"`ip link set {found.interface} mtu ...`: one MTU on all nodes")
    size = min(found.mtu, found.far_mtu)
    if not found.large:
        text = f"packets of {size} bytes get lost, and those of {found.largest} get through"
        yield fail(text, "every switch and tunnel between must carry the MTU of the nodes")
    elif min(found.small, found.large) < COUNT:
        text = f"{found.small} of {COUNT} small and {found.large} of {COUNT} large packets returned"
        yield warn(text, "`ip -s link` and the counters of the switches show where they get lost")
    elif found.connects and found.mtu == found.far_mtu:
        yield ok(f"packets of up to {size} bytes get through, and TCP connects")


def ask(line: str) -> int:
    """Test the paths to the node of an offer, and print the results as JSON."""
    try:
        offer = _OFFERS.decode(line)
    except msgspec.MsgspecError as error:
        print(f"watchtower-agent: invalid offer: {error}", file=sys.stderr)
        return 2
    results = [
        CheckResult(
            check=f"path to {found.address} ({found.interface})",
            state=each.state,
            text=each.text,
            fix=each.fix,
        )
        for found in probe(offer)
        for each in judge(found)
    ]
    answer = {"state": find_worst(results).value, "results": results}
    print(msgspec.json.encode(answer).decode())
    return 1 if find_worst(results) is CheckState.FAIL else 0


def run(interface: str, *, asks: bool) -> int:
    """Answer, or ask the node whose offer is the first line of standard input."""
    return ask(sys.stdin.readline(MAX_OFFER)) if asks else answer(interface)


MAX_OFFER = 1 << 16
"""Characters of an offer. One of 64 interfaces has 4000."""
