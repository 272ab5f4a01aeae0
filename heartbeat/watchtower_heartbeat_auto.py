"""Hooks torch's optimizers without importing torch, and without a page before there is a step.

A module of its own beside the package, because importing the package makes a page in every process
that has a rank in its environment, and helpers and compile workers have it too. `switch_on` runs at
the start of every interpreter when WATCHTOWER_HEARTBEAT=auto (see the .pth file of the same name):
nothing here may raise, print or be slow.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

OPTIMIZERS = "torch.optim.optimizer"
"""The module that is waited for."""

_on = False
_once = allocate_lock()  # taken, by the first who comes, and never given back
_count: Callable[[object], None] | None = None


def switch_on() -> None:
    """Hook the optimizers now if torch is there, else as soon as it is; once per process.

    In a virtual environment Python runs every .pth file twice.
    """
    global _on
    if not _on and not register():
        sys.meta_path.insert(0, ImportWatch(OPTIMIZERS, register))
    _on = True


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


def register() -> bool:
    """Hook the optimizers, once per process; False while torch's module is not (quite) there."""
    module = sys.modules.get(OPTIMIZERS)
    add_hook = getattr(module, "register_optimizer_step_post_hook", None)
    if add_hook is None:
        return False
    if _once.acquire(False):
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
            _count = _find_counter()
        _count(optimizer)
    except Exception:  # training goes on
        return


def _is_compiling() -> bool:
    import torch

    compiler = getattr(torch, "compiler", None)  # torch 2.0 and older cannot tell
    probe = getattr(compiler, "is_compiling", None)
    return probe is not None and bool(probe())


def _find_counter() -> Callable[[object], None]:
    """Import the client, at the first step of this process; a broken one is asked for only once."""
    try:
        from watchtower_heartbeat.torch import count_step
    except Exception:
        return _count_nothing
    return count_step


def _count_nothing(optimizer: object) -> None:
    return
