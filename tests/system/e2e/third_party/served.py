"""An asyncio server in the main thread, training in a thread of its own."""

import asyncio
import threading

from plain import Star, is_time
from watchtower_heartbeat import beat

permitted = threading.Event()
star = Star()


def loop():
    for step in range(10_000):
        if is_time(step):
            permitted.wait()
        star.combine(1.0)
        beat(step)


async def serve():
    await asyncio.to_thread(loop)


asyncio.run(serve())
