"""How another process of our own programs is started, on every supported interpreter."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

_START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(
    module: str, *words: str, python: str | Path = sys.executable
) -> tuple[str, ...]:
    """Return the command that runs a module as `python -m` does, but with no file of the current
    folder: one that is called like a module would replace it.

    Python 3.11 and newer have -P for this. -I does it, too, but ignores PYTHONPATH and what
    `pip install --user` has installed: our packages may be there. So the command itself drops the
    current folder, which is the empty name, before it imports anything.
    """
    return (str(python), "-c", _START, module, *words)


_ENDS_WITH_PARENT = Path(__file__).with_name("ends_with_parent.py")


def with_parent(number: signal.Signals = signal.SIGKILL) -> tuple[str, ...]:
    """Return the words before a command to which the kernel sends this signal when we die."""
    script = str(_ENDS_WITH_PARENT)
    return (sys.executable, "-I", script, str(int(number)), str(os.getpid()))
