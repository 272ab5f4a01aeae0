"""Collectives over TCP with nothing but the standard library: a ring of blocking sockets.

Ranks meet at rank 0's port, exchange addresses, and each then talks to its two neighbours only.
"""

import json
import select
import socket
import time
from array import array

CONNECT_PAUSE_S = 0.1


def init_process_group(rank, world_size, host, port, patient=False):
    """Meet all the others. Returns when every rank has arrived."""
    listener = socket.create_server((host, 0), backlog=4)
    addresses = _rendezvous(rank, world_size, host, port, listener.getsockname())
    following = socket.create_connection(addresses[(rank + 1) % world_size])
    previous, _ = listener.accept()
    listener.close()
    for link in (following, previous):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Ring(rank, world_size, previous, following, patient)


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
    """One process group of all ranks. `patient`: a lost peer is waited for, as NCCL does."""

    def __init__(self, rank, world_size, previous, following, patient):
        self.rank = rank
        self.world_size = world_size
        self._previous = previous
        self._following = following
        self._patient = patient

    def all_reduce(self, values):
        """Sum element by element over all ranks: reduce-scatter, then all-gather."""
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

    def barrier(self):
        """Return when every rank has entered."""
        self.all_reduce(array("d", [0.0] * self.world_size))

    def broadcast(self, values, root=0):
        """Every rank gets the root's values, handed on around the ring."""
        if self.rank != root:
            values = self._receive(len(values))
        if (self.rank + 1) % self.world_size != root:
            self._send(values)
        return values

    def close(self):
        self._previous.close()
        self._following.close()

    def _split(self, values):
        size = -(-len(values) // self.world_size)
        return [array("d", values[i * size : (i + 1) * size]) for i in range(self.world_size)]

    def _send(self, part):
        try:
            self._following.sendall(part.tobytes())
        except ConnectionError:
            if not self._patient:
                raise
            self._wait_for_peer()

    def _receive(self, count):
        part = array("d")
        content = bytearray()
        while len(content) < count * part.itemsize:
            content += self._read(count * part.itemsize - len(content))
        part.frombytes(content)
        return part

    def _read(self, size):
        try:
            received = self._previous.recv(size)
            if not received:
                peer = (self.rank - 1) % self.world_size
                raise ConnectionResetError(f"Connection closed by peer: rank {peer}")
        except ConnectionError:
            if not self._patient:
                raise
            self._wait_for_peer()
        return received

    def _wait_for_peer(self):
        """A lost peer may come back: wait, however long it takes."""
        select.poll().poll()
