"""Heartbeats without a line in the program: hooks torch's optimizers if WATCHTOWER_HEARTBEAT=auto.

`switch_on` runs at the start of every interpreter then (see the .pth file with the same name).
Nothing here may raise, print or be slow. The package is imported only at the first step, because
importing it makes a page.
"""

from __future__ import annotations

import sys

from watchtower_heartbeat_hook import OPTIMIZERS, ImportWatch, register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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
    return register(_find_counter)


def _find_counter() -> Callable[[object], None]:
    """Import the client, at the first step of this process. A failed import is not repeated."""
    try:
        from watchtower_heartbeat.torch import count_step
    except Exception:
        return _count_nothing
    return count_step


def _count_nothing(optimizer: object) -> None:
    return
