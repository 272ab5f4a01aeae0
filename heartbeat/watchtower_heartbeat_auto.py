"""Heartbeats without a line in the program: hooks torch's optimizers if WATCHTOWER_HEARTBEAT=auto.

`switch_on` runs at the start of every interpreter then (see the .pth file with the same name). It
waits for a module of torch without importing anything. This module is outside of the package,
because importing the package makes a page: so that is done only at the first step, and not in
helpers and compile workers with a rank in their environment. Nothing here may raise, print or be
slow.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Counter = Callable[[object], None]

OPTIMIZERS = "torch.optim.optimizer"
"""The module to wait for."""

_once = allocate_lock()  # acquired by the first caller, and never released
_find_counter: Callable[[], Counter] | None = None
_count: Counter | None = None


class ImportWatch:
    """An entry in `sys.meta_path` that finds nothing, and removes itself when a module is
    imported.
    """

    def __init__(self, awaited: str, register: Callable[[], bool]) -> None:
        """Wait for the module `awaited`. `register` returns whether it was completely imported."""
        self._awaited, self._register = awaited, register
        self._done = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Return None: the import continues as without this entry.

        A module is ready when torch imports its next modules, so no loader has to be wrapped.
        """
        if self._awaited not in sys.modules or self._done:
            return
        try:
            self._done = self._register()
        except Exception:  # an import of the program must not fail
            self._done = True
        if self._done:
            # A new list: a loop over the old one must not skip a finder.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


def register(find_counter: Callable[[], Counter]) -> bool:
    """Hook the optimizers, once per process; False while torch's module is not completely imported.

    `find_counter` is called at the first step, and returns the function that counts steps.
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
    """Count a step of an optimizer. Torch calls this for every optimizer.

    torch.compile traces it with the step, and counting breaks the graph there. Torch's own
    optimizers break theirs anyway. Other optimizers may need one graph (`fullgraph=True`), so their
    compiled steps are not counted.
    """
    global _count
    try:
        if _is_compiling() and not type(optimizer).__module__.startswith("torch.optim."):
            return
        if _count is None:
            _count = _find_counter() if _find_counter is not None else _count_nothing
        _count(optimizer)
    except Exception:  # training must continue
        return


def _is_compiling() -> bool:
    import torch

    compiler = getattr(torch, "compiler", None)  # torch 2.0 and older do not have it
    probe = getattr(compiler, "is_compiling", None)
    return probe is not None and bool(probe())


def _count_nothing(optimizer: object) -> None:
    return


_on = False


def switch_on() -> None:
    """Hook the optimizers now or as soon as torch is imported; once per process.

    In a virtual environment Python runs every .pth file twice.
    """
    global _on
    if not _on and not _register():
        sys.meta_path.insert(0, ImportWatch(OPTIMIZERS, _register))
    _on = True


def _register() -> bool:
    return register(_import_counter)


def _import_counter() -> Callable[[object], None]:
    """Import the client, at the first step of this process. A failed import is not repeated."""
    try:
        from watchtower_heartbeat.torch import count_step
    except Exception:
        return _count_nothing
    return count_step
