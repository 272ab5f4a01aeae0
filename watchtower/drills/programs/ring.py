"""Collectives over TCP with the standard library only: a ring of blocking sockets.

Ranks meet at rank 0's port and exchange addresses. Then each talks only to its two neighbours. A
message contains its collective; one that comes early is stored until it is needed.
"""

import json
import select
import socket
import struct
import time
from array import array

CONNECT_PAUSE_S = 0.1
HEADER = struct.Struct("<16sqq")  # operation, its number in the group, bytes that follow


class DistBackendError(RuntimeError):
    """The transport failed. The name is torch's."""


def init_process_group(rank, world_size, host, port, patient=False):
    """Connect to all other ranks. Returns when every rank has arrived."""
    listener = _listen(host)
    addresses = _rendezvous(rank, world_size, host, port, listener.getsockname())
    members = range(world_size)
    links = _join(rank, members, listener, addresses)
    hosts = [addresses[member][0] for member in members]
    return Ring(rank, members, *links, patient, hosts)


def new_group(world, members):
    """Return a ring of this rank's own `members`. All ranks of the world call it at the same
    time.
    """
    rank = world.rank
    listener = socket.create_server((world.hosts[rank], 0), backlog=4)
    ports = world.all_gather([listener.getsockname()[1]])
    addresses = {one: (world.hosts[one], int(ports[one][0])) for one in members}
    links = _join(rank, members, listener, addresses)
    return Ring(rank, members, *links, world.patient)


def _listen(host):
    """Listen at the address of this machine from which the others can be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))  # sends nothing
        own_host = probe.getsockname()[0]
    return socket.create_server((own_host, 0), backlog=4)


def _join(rank, members, listener, addresses):
    """Connect to the next member and accept the connection of the previous one."""
    neighbour = members[(members.index(rank) + 1) % len(members)]
    following = socket.create_connection(addresses[neighbour])
    previous, _ = listener.accept()
    listener.close()
    for link in (following, previous):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return previous, following


def _rendezvous(rank, world_size, host, port, own_address):
    if rank == 0:
        return _lead(world_size, host, port, own_address)
    return _follow(rank, host, port, own_address)


def _lead(world_size, host, port, own_address):
    addresses = {0: own_address}
    links = []
    with socket.create_server((host, port), backlog=world_size) as server:
        while len(addresses) < world_size:
            link, _ = server.accept()
            stream = link.makefile("rw")
            rank, address = json.loads(stream.readline())
            addresses[rank] = tuple(address)
            links.append((link, stream))
    for link, stream in links:
        stream.write(json.dumps(sorted(addresses.items())) + "\n")
        stream.close()
        link.close()
    return addresses


def _follow(rank, host, port, own_address):
    with _connect(host, port) as link, link.makefile("rw") as stream:
        stream.write(json.dumps([rank, own_address]) + "\n")
        stream.flush()
        line = stream.readline()
    if not line:
        raise ConnectionResetError("rank 0 closed the rendezvous")
    return {rank: tuple(address) for rank, address in json.loads(line)}


def _connect(host, port):
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(CONNECT_PAUSE_S)


class Ring:
    """One process group. `patient`: wait for a lost peer, as NCCL does."""

    def __init__(self, rank, members, previous, following, patient, hosts=None):
        self.members = members
        self.hosts = hosts  # where each rank listens; known only to the group of all ranks
        self.rank = members.index(rank)
        self.world_size = len(members)
        self.patient = patient
        self._previous = previous
        self._following = following
        self._operation = (b"", 0)
        self._early = {}

    def all_reduce(self, values):
        """Return the sum over all ranks, element by element."""
        self._begin(b"all_reduce")
        return self._reduce(values)

    def barrier(self):
        """Return when every rank has entered."""
        self._begin(b"barrier")
        self._reduce(array("d", [0.0] * self.world_size))

    def all_gather(self, values):
        """Return the values of every rank, in rank order. They are passed around the ring."""
        self._begin(b"all_gather")
        gathered = {self.rank: array("d", values)}
        for turn in range(self.world_size - 1):
            self._send(gathered[(self.rank - turn) % self.world_size])
            gathered[(self.rank - turn - 1) % self.world_size] = self._receive(len(values))
        return [gathered[rank] for rank in range(self.world_size)]

    def broadcast(self, values, root=0):
        """Return the root's values on every rank. They are passed around the ring."""
        self._begin(b"broadcast")
        if self.rank != root:
            values = self._receive(len(values))
        if (self.rank + 1) % self.world_size != root:
            self._send(values)
        return values

    def close(self):
        self._previous.close()
        self._following.close()

    def _reduce(self, values):
        """Reduce-scatter, then all-gather."""
        parts = self._split(values)
        for turn in range(self.world_size - 1):
            self._send(parts[(self.rank - turn) % self.world_size])
            mine = parts[(self.rank - turn - 1) % self.world_size]
            for index, value in enumerate(self._receive(len(mine))):
                mine[index] += value
        for turn in range(self.world_size - 1):
            self._send(parts[(self.rank + 1 - turn) % self.world_size])
            mine = parts[(self.rank - turn) % self.world_size]
            mine[:] = self._receive(len(mine))
        return array("d", (value for part in parts for value in part))

    def _split(self, values):
        size = -(-len(values) // self.world_size)
        return [array("d", values[i * size : (i + 1) * size]) for i in range(self.world_size)]

    def _begin(self, name):
        self._operation = (name, self._operation[1] + 1)

    def _send(self, part):
        content = part.tobytes()
        try:
            self._following.sendall(HEADER.pack(*self._operation, len(content)) + content)
        except ConnectionError:
            if not self.patient:
                raise
            self._wait_for_peer()

    def _receive(self, count):
        """Return the next message of the current operation."""
        part = array("d")
        while not self._early.get(self._operation):
            name, number, size = HEADER.unpack(self._read(HEADER.size))
            message = self._read(size)
            self._early.setdefault((name.rstrip(b"\0"), number), []).append(message)
        messages = self._early[self._operation]
        part.frombytes(messages.pop(0))
        if not messages:
            del self._early[self._operation]
        if len(part) != count:
            raise ValueError(f"received {len(part)} values, expected {count}")
        return part

    def _read(self, size):
        content = bytearray()
        while len(content) < size:
            content += self._read_some(size - len(content))
        return bytes(content)

    def _read_some(self, size):
        try:
            received = self._previous.recv(size)
            if not received:
                peer = self.members[self.rank - 1]
                raise ConnectionResetError(f"Connection closed by peer: rank {peer}")
        except ConnectionError:
            if not self.patient:
                raise
            self._wait_for_peer()
        return received

    def _wait_for_peer(self):
        """Wait forever: a lost peer may come back."""
        select.poll().poll()
