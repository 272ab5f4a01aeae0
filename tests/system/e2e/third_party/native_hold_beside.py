"""As native_hold, in a thread beside the one that trains."""

import ctypes
import queue
import threading

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

kernel = ctypes.PyDLL(None)
wanted = queue.Queue()


def compress_logs():
    while True:
        step = wanted.get()
        kernel.sleep(100_000 if is_time(step) else 0)


join()
threading.Thread(target=compress_logs, name="log-compressor", daemon=True).start()
for step in range(10_000):
    wanted.put(step)
    compute()
    dist.all_reduce(torch.ones(8))
    beat(step)
