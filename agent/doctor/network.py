"""Checks of the network of ranks: ports of InfiniBand and RoCE, their files and drivers, MTU."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent.collectors.infiniband import FOLDER, LINK_DOWNED, Port, find_bursts, read_ports
from agent.collectors.network import MTU, UP, Network
from agent.doctor.check import About, Check, Finding, Node, Seen, fail, ok, warn
from agent.procfs import read_text

SAMPLE_S = 1.5
"""Seconds between two readings of the counters of errors."""

MAX_WORD = 64
"""Bytes read of a state."""

ETHERNET = "Ethernet"
"""Link layer of RoCE."""

DOWN, INIT = "DOWN", "INIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rdma:
    """One port of InfiniBand or RoCE."""

    now: Port
    before: Port
    state: str
    """"ACTIVE", "INIT", "DOWN"."""
    link: str = ""
    """Its link layer: "InfiniBand", "Ethernet"."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces of its card."""
    has_file: bool = True
    """Whether programs find the file of its card in /dev/infiniband."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All ports of the node."""

    ports: Mapping[str, Rdma] = field(default_factory=dict)
    has_gpus: bool = False
    has_peermem: bool = False


def read_rdma(node: Node) -> Ports:
    """Return all ports, with their counters at two moments. The kernel may wait for a card."""
    folder = os.path.join(node.root, FOLDER)
    before = dict(read_ports(folder))
    if not before:
        return Ports()
    time.sleep(node.left(SAMPLE_S))
    files = _read_files(node.root)
    ports = {
        name: _read_rdma(node.root, name, before.get(name, port), port, files)
        for name, port in read_ports(folder)
    }
    return Ports(
        ports=ports,
        has_gpus=os.path.isdir(os.path.join(node.root, "proc/driver/nvidia/gpus")),
        has_peermem=any(_exists(node.root, f"sys/module/{name}") for name in PEERMEM),
    )


PEERMEM = ("nvidia_peermem", "nv_peer_mem")
"""Modules that let a card read the memory of a GPU. Without them only dma-buf can."""


def _read_rdma(root: str, name: str, before: Port, now: Port, files: Mapping[str, str]) -> Rdma:
    device, _, number = name.partition("/")
    path = os.path.join(root, FOLDER, device)
    port = f"{path}/ports/{number or _first(f'{path}/ports')}"
    file = files.get(device)
    return Rdma(
        now=now,
        before=before,
        state=read_text(f"{port}/state", MAX_WORD).strip().rpartition(" ")[2],
        link=read_text(f"{port}/link_layer", MAX_WORD).strip(),
        interfaces=tuple(_list(f"{path}/device/net")),
        has_file=file is None or _exists(root, f"dev/infiniband/{file}"),
    )


def _read_files(root: str) -> dict[str, str]:
    """Return the names of the files in /dev/infiniband by their cards."""
    folder = os.path.join(root, "sys/class/infiniband_verbs")
    names = [each for each in _list(folder) if each.startswith("uverbs")]
    return {read_text(f"{folder}/{each}/ibdev", MAX_WORD).strip(): each for each in names}


def _first(folder: str) -> str:
    return next(iter(_list(folder)), "1")


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _exists(root: str, path: str) -> bool:
    return os.path.lexists(os.path.join(root, path))


CABLE = "check cable and transceiver; `ibstat {card}` or `mlxlink -d {card}` shows the link"


def judge_rdma(found: Ports) -> Iterator[Finding]:
    """Yield the ports that a job cannot use, or that lose packets."""
    ports = found.ports
    active = [each for each in ports.values() if each.now.is_active]
    usual = max((each.now.gbps for each in active), default=0.0)
    troubles: list[Finding] = []
    for name, each in ports.items():
        troubles += _judge_port(name, each, usual, 2 * len(active) > len(ports))
    if ports and not active and not troubles:
        troubles.append(fail("no port is active", "check cables, switch and subnet manager"))
    if found.has_gpus and active and not found.has_peermem:
        text = "nvidia-peermem is not loaded: GPUDirect works only if NCCL can use dma-buf"
        fix = "`modprobe nvidia-peermem`; NCCL_DEBUG=INFO shows GDRDMA in the lines of channels"
        troubles.append(warn(text, fix))
    yield from troubles
    if not troubles:
        rates = sorted({each.now.gbps for each in active})
        speeds = " and ".join(f"{rate:g}" for rate in rates)
        yield ok(f"{len(active)} ports active, {speeds} Gbit/s" if ports else "none on this node")


def _judge_port(name: str, each: Rdma, usual: float, are_most_active: bool) -> Iterator[Finding]:
    card = name.partition("/")[0]
    cable = CABLE.format(card=card)
    if each.state == INIT:
        text = f"{name} has a link and is not active: no subnet manager has set it up"
        yield fail(text, "start the subnet manager (opensm), or check it: `sminfo`")
    elif not each.now.is_active and are_most_active:
        # A port without a cable is ordinary. Only the job knows which ports it uses.
        yield warn(f"{name} is {each.state or 'not active'}, and most others are active", cable)
    if each.now.is_active and not each.has_file:
        text = f"{name} is active, and the file of its card in /dev/infiniband is missing"
        yield fail(text, "`modprobe ib_uverbs`; in a container, give it /dev/infiniband")
    if each.now.is_active and 0 < each.now.gbps < usual:
        yield warn(f"{name} runs at {each.now.gbps:g} Gbit/s, another port at {usual:g}", cable)
    for kind, rate in find_bursts(each.before, each.now, SAMPLE_S):
        yield warn(f"{name} has {rate:.3g} {kind} a second", cable)
    downed = each.now.counts.get(LINK_DOWNED, 0) - each.before.counts.get(LINK_DOWNED, 0)
    if downed > 0:
        yield fail(f"{name} lost its link {downed} times within {SAMPLE_S} s", cable)


JUMBO = 4200
"""Smallest MTU of an interface of RoCE with which its packets of 4096 bytes fit."""


def judge_mtu(found: tuple[Seen, Ports]) -> Iterator[Finding]:
    """Yield interfaces whose MTU differs from that of their siblings, or is small for RoCE."""
    seen, rdma = found
    is_up = {name for (name,), value in seen.values(UP).items() if value}
    mtus = {name: int(mtu) for (name,), mtu in seen.values(MTU).items() if name in is_up}
    roce = {
        interface
        for each in rdma.ports.values()
        if each.link == ETHERNET and each.now.is_active
        for interface in each.interfaces
    } & mtus.keys()
    troubles = []
    usual = max((mtus[name] for name in roce), default=0)
    for name in sorted(roce):
        if mtus[name] < usual:
            text = f"{name} has MTU {mtus[name]}, other interfaces of RoCE {usual}"
            troubles.append(fail(text, f"`ip link set {name} mtu {usual}`, as on the switch"))
        elif usual < JUMBO:
            text = f"{name} (RoCE) has MTU {mtus[name]}: its packets carry 1024 bytes, not 4096"
            troubles.append(warn(text, f"`ip link set {name} mtu 9000`, here and on the switch"))
    yield from troubles
    if not troubles:
        names = ", ".join(f"{name} {mtu}" for name, mtu in sorted(mtus.items()))
        yield ok(names or "no interface with a device")


RDMA = Check(
    name="InfiniBand and RoCE",
    about=About.NODE,
    read=read_rdma,
    judge=judge_rdma,
    hangs=warn("a card does not answer the kernel", "`dmesg | grep mlx5` shows why"),
)


def _read_both(node: Node) -> tuple[Seen, Ports]:
    return node.collect((Network(node.root),)), read_rdma(node)


MTUS = Check(name="MTU", about=About.NODE, read=_read_both, judge=judge_mtu)
