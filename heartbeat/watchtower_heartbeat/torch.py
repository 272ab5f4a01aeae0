"""Heartbeats once per step of a plain torch program: `install()`, without a line in the loop.

Importing this module does not import torch; `install` does.
"""

from __future__ import annotations

import watchtower_heartbeat_auto
from watchtower_heartbeat.hooks import OPTIMIZER, beats
from watchtower_heartbeat.notice import warn_once

# Only a program with a new optimizer for every step, all of them kept, has so many.
MOST_OPTIMIZERS = 100_000


def install() -> None:
    """Send a heartbeat after each step of the optimizers. More calls change nothing.

    If the program calls `beat` itself, this hook is silent from then on. Imports torch. Prints one
    line if that fails or if torch is too old (before 2.0) to have such hooks.
    """
    try:
        import torch.optim.optimizer  # noqa: F401  -- what register() needs

        if not watchtower_heartbeat_auto.register(lambda: count_step):
            warn_once("torch", "this torch has no hooks for optimizer steps; call beat(step)")
    except Exception as error:
        warn_once("torch", f"no beats from torch's optimizers: {error}")


class Rounds:
    """Counts training steps from the steps of any number of optimizers.

    A training step ends when an optimizer steps for the second time. Two alternating optimizers (a
    GAN), one optimizer per parameter, and an optimizer that wraps another are all counted once per
    training step.
    """

    def __init__(self) -> None:
        """Start at zero: the first step is step 1."""
        self.steps = 0
        self._stepped: set[int] = set()

    def begins_with(self, optimizer: object) -> bool:
        """Record that `optimizer` has stepped; return whether that begins a new training step."""
        key = id(optimizer)
        if self._stepped and key not in self._stepped and len(self._stepped) < MOST_OPTIMIZERS:
            self._stepped.add(key)
            return False
        self._stepped = {key}
        self.steps += 1
        return True


_rounds = Rounds()


def count_step(optimizer: object) -> None:
    """Send a heartbeat if this optimizer step begins a training step. Never raises."""
    try:
        if _rounds.begins_with(optimizer):
            beats.beat(OPTIMIZER, _rounds.steps)
    except Exception as error:
        warn_once("torch", f"a step of an optimizer could not be counted: {error}")
