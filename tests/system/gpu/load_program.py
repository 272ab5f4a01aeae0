"""Program: keeps one GPU busy until its input is closed. It prints "ready" when the GPU is.

    python load_program.py working|spinning

`spinning` runs a kernel of one thread that only looks at the clock, as a kernel of NCCL that waits
for a peer does: the GPU is 100 % busy and does nothing. Two kernels are queued at any time, so that
the GPU has no pause between them.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

CYCLES = 200_000_000
"""Of one kernel that spins: about 0.1 s."""

SIZE, PRODUCTS = 8192, 20
"""Rows of the matrices, and how many products are queued at once: about 0.1 s on an H100."""

AHEAD = 2


def main(kind: str) -> None:
    """Queue work until the input is closed."""
    import torch  # only this program needs it

    queue = {"working": make_products, "spinning": make_spins}[kind](torch)
    is_over = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=watch, daemon=True).start()
    queued: deque[Any] = deque()
    is_ready = False
    while not is_over.is_set():
        queue()
        event = torch.cuda.Event()
        event.record()
        queued.append(event)
        if len(queued) > AHEAD:
            queued.popleft().synchronize()
            if not is_ready:
                is_ready = True
                print("ready", flush=True)
    torch.cuda.synchronize()


def make_products(torch: Any) -> Callable[[], None]:
    """Return what queues products of large matrices: work for tensor cores and memory."""
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)

    def queue() -> None:
        for _ in range(PRODUCTS):
            torch.matmul(left, right, out=product)

    return queue


def make_spins(torch: Any) -> Callable[[], None]:
    """Return what queues a kernel that waits for the clock."""
    return lambda: torch.cuda._sleep(CYCLES)


if __name__ == "__main__":
    main(sys.argv[1])
