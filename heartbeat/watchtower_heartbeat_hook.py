"""Waits for a module of torch, and hooks torch's optimizers, without importing anything.

A module of its own beside the package. Importing the package makes a page in every process that has
a rank in its environment, also in helpers and compile workers. Nothing here may raise, print or be
slow: `watchtower_heartbeat_auto` imports it at the start of interpreters.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Counter = Callable[[object], None]

OPTIMIZERS = "torch.optim.optimizer"
"""The module that is waited for."""

_once = allocate_lock()  # taken by the first caller, and never released
_find_counter: Callable[[], Counter] | None = None
_count: Counter | None = None


class ImportWatch:
    """Sits in front of `sys.meta_path`, finds nothing, and leaves when a module is there."""

    def __init__(self, awaited: str, register: Callable[[], bool]) -> None:
        """Wait for the module `awaited`; `register` says whether it was (quite) there."""
        self._awaited, self._register = awaited, register
        self._done = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Return None: the import goes on as if this were not here.

        A module is there when torch goes on to import its siblings, so that no loader has to be
        wrapped.
        """
        if self._awaited not in sys.modules or self._done:
            return
        try:
            self._done = self._register()
        except Exception:  # somebody else's import must not fail
            self._done = True
        if self._done:
            # A new list: whoever walks the old one at this moment must not skip a finder.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


def register(find_counter: Callable[[], Counter]) -> bool:
    """Hook the optimizers, once per process; False while torch's module is not (quite) there.

    `find_counter` is called at the first step, and returns what counts the steps.
    """
    global _find_counter
    module = sys.modules.get(OPTIMIZERS)
    add_hook = getattr(module, "register_optimizer_step_post_hook", None)
    if add_hook is None:
        return False
    if _once.acquire(False):
        _find_counter = find_counter
        add_hook(after_step)
    return True


def after_step(optimizer: object, args: object, kwargs: object) -> None:
    """Count a step that an optimizer has made; torch calls this, for every optimizer.

    torch.compile traces it with the step, and counting breaks the graph there. torch's own
    optimizers break theirs anyway; any other may be wanted whole (`fullgraph=True`), so its
    compiled steps are not counted.
    """
    global _count
    try:
        if _is_compiling() and not type(optimizer).__module__.startswith("torch.optim."):
            return
        if _count is None:
            _count = _find_counter() if _find_counter is not None else _count_nothing
        _count(optimizer)
    except Exception:  # training goes on
        return


def _is_compiling() -> bool:
    import torch

    compiler = getattr(torch, "compiler", None)  # torch 2.0 and older cannot tell
    probe = getattr(compiler, "is_compiling", None)
    return probe is not None and bool(probe())


def _count_nothing(optimizer: object) -> None:
    return
