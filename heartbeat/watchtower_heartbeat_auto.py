"""Hooks torch's optimizers without importing torch, and without a page before there is a step.

A module of its own beside the package, because importing the package makes a page in every process
that has a rank in its environment, and helpers and compile workers have it too. `switch_on` runs at
the start of every interpreter when WATCHTOWER_HEARTBEAT=auto (see the .pth file of the same name):
nothing here may raise, print or be slow.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

OPTIMIZERS = "torch.optim.optimizer"
"""The module whose import we wait for."""

_on = False
_registered = False
_count: Callable[[object], None] | None = None


def switch_on() -> None:
    """Hook the optimizers now if torch is there, else as soon as it is; once per process.

    In a virtual environment Python runs every .pth file twice.
    """
    global _on
    if not _on and not register():
        sys.meta_path.insert(0, Lookout())
    _on = True


class Lookout:
    """Sits in front of `sys.meta_path`, finds nothing, and leaves when the optimizers are there."""

    def __init__(self) -> None:
        self._near = False
        self._gone = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Return None: the import goes on as if this were not here.

        The module is not there yet when its own import begins. It is when its siblings are
        imported, so that no loader has to be wrapped.
        """
        if name == OPTIMIZERS:
            self._near = True
        elif self._near and not self._gone and register():
            self._gone = True
            # A new list: whoever walks the old one at this moment must not skip a finder.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


def register() -> bool:
    """Hook the optimizers, once per process; False while torch's module is not (quite) there."""
    global _registered
    if not _registered:
        module = sys.modules.get(OPTIMIZERS)
        add_hook = getattr(module, "register_optimizer_step_post_hook", None)
        if add_hook is None:
            return False
        _registered = True
        add_hook(after_step)
    return True


def after_step(optimizer: object, args: object, kwargs: object) -> None:
    """Count a step that an optimizer has made; torch calls this, for every optimizer.

    torch.compile traces it with the step. Counting is left out of the graph, which would break a
    graph that the user wants whole (`fullgraph=True`): so it is done only for torch's own
    optimizers, which break the graph themselves. A compiled step of another class is not counted.
    """
    if _is_compiling():
        if type(optimizer).__module__.startswith("torch.optim."):
            _count_outside_of_graphs(optimizer)
        return
    _count_outside_of_graphs(optimizer)


def _is_compiling() -> bool:
    import torch

    compiler = getattr(torch, "compiler", None)  # torch 2.0 and older cannot tell
    probe = getattr(compiler, "is_compiling", None)
    return probe is not None and bool(probe())


def _count_outside_of_graphs(optimizer: object) -> None:
    global _count
    try:
        if _count is None:
            _count = _find_counter()
        _count(optimizer)
    except Exception:  # training goes on
        return


# What torch.compiler.disable() sets; calling that would import all of torch's compiler here.
_count_outside_of_graphs._torchdynamo_disable = True  # type: ignore[attr-defined]


def _find_counter() -> Callable[[object], None]:
    """Import the client, at the first step of this process; a broken one is asked for only once."""
    try:
        from watchtower_heartbeat.torch import count_step
    except Exception:
        return _count_nothing
    return count_step


def _count_nothing(optimizer: object) -> None:
    return
