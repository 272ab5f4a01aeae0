"""The command of a Python process of the agent's own that executes one module.

Only the standard library comes before our own packages, and no file of a user is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGES = str(Path(__file__).parents[2])
_START = (
    "import importlib, sys; sys.path.append(sys.argv.pop(1)); "
    "importlib.import_module(sys.argv.pop(1)).main()"
)


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main` of a module. It finds the arguments in `sys.argv`."""
    return [sys.executable, "-I", "-S", "-c", _START, _PACKAGES, module, *arguments]
