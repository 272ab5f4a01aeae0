"""Processes of JAX that train together: one of them hangs where it loads its data.

The first argument is "variables" (ranks are in the environment, no heartbeats) or "arguments" (only
the program knows the ranks, and it has heartbeats).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

TRAINERS, CULPRIT, HANGS_AT, STEP_S = 4, 2, 20, 0.2


def start(mode: str) -> None:
    """Start all trainers, print their process ids, and wait for them."""
    from watchtower.drills.launching import free_port

    address = f"127.0.0.1:{free_port()}"
    running = []
    for rank in range(TRAINERS):
        variables, words = {"JAX_PLATFORMS": "cpu"}, [address, str(rank)]
        if mode == "variables":
            variables |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_PROCESS_ID": str(rank)}
            variables["JAX_NUM_PROCESSES"] = str(TRAINERS)
        running.append(
            subprocess.Popen(
                [sys.executable, __file__, mode, *words],
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
            )
        )
    print(*(each.pid for each in running), flush=True)
    for each in running:
        each.wait()


def train(address: str, rank: int, beat) -> None:
    """Train until the culprit hangs."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize(address, TRAINERS, rank)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))

    @jax.jit
    def update(batch, weight):
        loss = jax.numpy.mean((batch * weight) ** 2)
        return loss, weight - 0.01 * loss

    weight = jax.numpy.float32(1.0)
    for step in range(100_000):
        beat(step)
        local = load_batch(rank, step)
        batch = jax.make_array_from_process_local_data(sharding, local)
        loss, weight = update(batch, weight)
        loss.block_until_ready()


def load_batch(rank: int, step: int):
    """Return the rows of this process."""
    import numpy as np

    time.sleep(STEP_S)
    if rank == CULPRIT and step == HANGS_AT:
        threading.Event().wait()
    return np.full((1, 4), step % 7, np.float32)


def main() -> None:
    mode, *words = sys.argv[1:]
    if not words:
        start(mode)
        return
    address, rank = words
    if mode == "arguments":
        from watchtower_heartbeat import beat
    else:

        def beat(step: int) -> None:
            """Do nothing."""

    train(address, int(rank), beat)


if __name__ == "__main__":
    main()
