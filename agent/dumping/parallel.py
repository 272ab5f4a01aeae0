"""Runs the steps of a round of dumps in threads: a step that hangs stops no other one."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)


def start_steps(
    name: str, at_once: int, steps: Sequence[Callable[[], None]]
) -> list[threading.Thread]:
    """Run all steps in the order given, up to `at_once` at the same time."""
    waiting = deque(steps)

    def work() -> None:
        while True:
            try:
                step = waiting.popleft()
            except IndexError:
                return
            try:
                step()
            except Exception:
                log.exception("a part of a dump failed; the other parts continue")

    threads = [
        threading.Thread(target=work, name=name, daemon=True)
        for _ in range(min(at_once, len(waiting)))
    ]
    for thread in threads:
        thread.start()
    return threads
