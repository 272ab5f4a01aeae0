"""What the hooks into frameworks share: who may beat, one phase at a time, and harm to nobody."""

from __future__ import annotations

import os
from _thread import allocate_lock

from watchtower_heartbeat import beating
from watchtower_heartbeat.notice import say_once
from watchtower_heartbeat.own_page import NO_PAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Method = TypeVar("Method", bound=Callable[..., None])

OPTIMIZER = 1
"""What torch's optimizers say: a count of our own."""

FRAMEWORK = 2
"""What a framework's callback says: the step as its users know it, so the optimizers are silent."""


class HookBeats:
    """Beats for the hooks for as long as nobody else does.

    Whoever calls `beat` knows best. Such a beat is seen by its time on the page, which is then not
    the one stored from here: that costs `beat` nothing.
    """

    def __init__(self) -> None:
        """Nobody has beaten yet; a forked child begins like this again, as its page does."""
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = allocate_lock()
        self._written_ns = 0
        self._source = OPTIMIZER

    def beat(self, source: int, step: int) -> None:
        """Beat, unless the program itself or a better source does."""
        # Optimizers may step in several threads; one that comes second has nothing to add.
        if not self._lock.acquire(False):
            return
        try:
            words = beating.hot
            somebody_else_beat = words is not NO_PAGE and words[1] != self._written_ns
            if somebody_else_beat or source < self._source:
                return
            beating.beat(step)
            self._written_ns, self._source = beating.hot[1], source
        finally:
            self._lock.release()

    def release(self) -> None:
        """Say that the framework's training is over: what comes now may be a plain loop."""
        self._source = OPTIMIZER


beats = HookBeats()


class HookPhase:
    """The one phase that a framework's callback is in; "" outside of all."""

    def __init__(self) -> None:
        """Begin outside of all phases."""
        self._name = ""
        self._phase = beating.phase("")

    def show(self, name: str) -> None:
        """Leave the phase there is and be in `name`; nothing happens if that is the one."""
        if name == self._name:
            return
        if self._name:
            self._phase.__exit__(None, None, None)
        self._name = name
        if name:
            self._phase = beating.phase(name)
            self._phase.__enter__()


def harmless(method: Method) -> Method:
    """Return the method of a callback such that it never raises into the framework's loop."""

    def guarded(*args: object, **kwargs: object) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            say_once("hook", f"{method.__qualname__} failed and is left out: {error!r}")

    guarded.__name__, guarded.__qualname__ = method.__name__, method.__qualname__
    guarded.__doc__ = method.__doc__
    return guarded  # type: ignore[return-value]
