"""Shared by programs without torch: a sum over a star of sockets, under plain names."""

import os
import socket
import struct
import time

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
CULPRIT = int(os.environ["CULPRIT"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
LAST_GOOD = 12


def is_time(step):
    time.sleep(0.2)
    return RANK == CULPRIT and step > LAST_GOOD


class Star:
    def __init__(self):
        self.links = []
        if RANK == 0:
            listener = socket.create_server(ADDRESS, backlog=WORLD)
            self.links = [listener.accept()[0] for _ in range(WORLD - 1)]
        while not self.links:
            try:
                self.links = [socket.create_connection(ADDRESS)]
            except ConnectionRefusedError:
                time.sleep(0.05)

    def combine(self, value):
        if RANK == 0:
            value += sum(struct.unpack("d", link.recv(8))[0] for link in self.links)
        for link in self.links:
            link.sendall(struct.pack("d", value))
        return value if RANK == 0 else struct.unpack("d", self.links[0].recv(8))[0]
