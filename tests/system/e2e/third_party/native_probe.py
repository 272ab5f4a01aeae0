"""Native code reads a device that never answers; without torch, without records."""

import ctypes
import os

from plain import Star, is_time
from watchtower_heartbeat import beat

native = ctypes.CDLL(None)
device, _ = os.pipe()
star = Star()


def probe(step):
    if is_time(step):
        native.read(device, ctypes.create_string_buffer(8), 8)


for step in range(10_000):
    probe(step)
    star.combine(1.0)
    beat(step)
