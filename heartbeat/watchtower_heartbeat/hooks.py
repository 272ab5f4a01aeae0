"""Shared by the hooks into frameworks: one source of heartbeats, one phase, and no exceptions."""

from __future__ import annotations

import os
from _thread import allocate_lock

from watchtower_heartbeat import beating
from watchtower_heartbeat.notice import warn_once
from watchtower_heartbeat.own_page import NO_PAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Method = TypeVar("Method", bound=Callable[..., None])

OPTIMIZER = 1
"""Torch's optimizers: the step is a count of our own."""

FRAMEWORK = 2
"""A framework's callback: the step is the framework's own. The optimizers are silent then."""


class HookBeats:
    """Heartbeats of the hooks, until the program itself calls `beat`.

    A direct call of `beat` has priority. It is detected by the time on the page, which then differs
    from the time stored here. This costs `beat` nothing.
    """

    def __init__(self) -> None:
        """Start without a source. A forked child starts again like this, as its page does."""
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = allocate_lock()
        self._written_ns = 0
        self._source = OPTIMIZER

    def beat(self, source: int, step: int) -> None:
        """Call `beat`, unless the program itself or a better source does."""
        # Optimizers may step in several threads; a second one at the same time adds nothing.
        if not self._lock.acquire(False):
            return
        try:
            words = beating.hot
            program_beats = words is not NO_PAGE and words[1] != self._written_ns
            if program_beats or source < self._source:
                return
            beating.beat(step)
            self._written_ns, self._source = beating.hot[1], source
        finally:
            self._lock.release()

    def release(self) -> None:
        """Report that the framework's training is over. A plain loop may follow."""
        self._source = OPTIMIZER


beats = HookBeats()


class HookPhase:
    """The phase of a framework's callback; "" outside of all phases."""

    def __init__(self) -> None:
        """Start outside of all phases."""
        self._name = ""
        self._phase = beating.phase("")

    def show(self, name: str) -> None:
        """Leave the current phase and enter `name`. Does nothing if it is the current one."""
        if name == self._name:
            return
        if self._name:
            self._phase.__exit__(None, None, None)
        self._name = name
        if name:
            self._phase = beating.phase(name)
            self._phase.__enter__()


def declare_known(**values: object) -> None:
    """Declare what a framework knows; what is None it does not know."""
    beating.declare(**{name: value for name, value in values.items() if value is not None})


def harmless(method: Method) -> Method:
    """Return a callback method that never raises into the framework's loop."""

    def guarded(*args: object, **kwargs: object) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            warn_once("hook", f"{method.__qualname__} failed and is skipped: {error!r}")

    guarded.__name__, guarded.__qualname__ = method.__name__, method.__qualname__
    guarded.__doc__ = method.__doc__
    return guarded  # type: ignore[return-value]
