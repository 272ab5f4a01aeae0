"""An asyncio server in the main thread, training in a thread of its own."""

import asyncio
import threading

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

permitted = threading.Event()


def loop():
    for step in range(10_000):
        compute()
        if is_time(step):
            permitted.wait()
        dist.all_reduce(torch.ones(4))
        beat(step)


async def serve():
    await asyncio.to_thread(loop)


join()
asyncio.run(serve())
