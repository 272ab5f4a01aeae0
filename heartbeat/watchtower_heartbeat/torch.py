"""Beats once per training step of a plain torch program: `install()`, and no line in the loop.

Importing this module imports no torch; `install` does.
"""

from __future__ import annotations

import watchtower_heartbeat_hook
from watchtower_heartbeat.hooks import OPTIMIZER, beats
from watchtower_heartbeat.notice import say_once

# Only a program that makes a new optimizer for every step and keeps them all comes near it.
MOST_OPTIMIZERS = 100_000


def install() -> None:
    """Beat whenever the optimizers of this process have made a step; more calls change nothing.

    Whoever calls `beat` is believed rather than this hook, which is silent from then on. Imports
    torch; says so once when that fails or is too old (before 2.0) to have such hooks.
    """
    try:
        import torch.optim.optimizer  # noqa: F401  -- what register() needs

        if not watchtower_heartbeat_hook.register(lambda: count_step):
            say_once("torch", "this torch has no hooks for optimizer steps; call beat(step)")
    except Exception as error:
        say_once("torch", f"no beats from torch's optimizers: {error}")


class Rounds:
    """Makes training steps of the steps of any number of optimizers.

    A training step ends when an optimizer steps that has stepped in it already. Two optimizers
    taking turns (a GAN), one optimizer per parameter, and an optimizer that wraps another are so
    counted once per training step, and none has to be chosen as the one that counts.
    """

    def __init__(self) -> None:
        """Begin at zero: the first step is step 1."""
        self.steps = 0
        self._stepped: set[int] = set()

    def begins_with(self, optimizer: object) -> bool:
        """Take note that `optimizer` has stepped; say whether that begins a new training step."""
        key = id(optimizer)
        if self._stepped and key not in self._stepped and len(self._stepped) < MOST_OPTIMIZERS:
            self._stepped.add(key)
            return False
        self._stepped = {key}
        self.steps += 1
        return True


_rounds = Rounds()


def count_step(optimizer: object) -> None:
    """Beat if this step of an optimizer begins a training step; never raises."""
    try:
        if _rounds.begins_with(optimizer):
            beats.beat(OPTIMIZER, _rounds.steps)
    except Exception as error:
        say_once("torch", f"a step of an optimizer could not be counted: {error}")
