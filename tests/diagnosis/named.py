"""Every doubt and every sentence of advice, by the name of its constant."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from watchtower import diagnosis
from watchtower.diagnosis.accusation import Doubt
from watchtower.diagnosis.blame_table import ACTIONS

WITH_SENTENCES = ("accusation", "advice", "blame_table", "causes", "diagnosis", "elsewhere")
NOT_ADVICE = frozenset(
    {
        "COMPARE_ROOTS",
        "WAIT_PLACE",
        "LOST",
        "NEEDS_RESET",
        "XID",
        "GPU_ECC",
        "QUOTE",
        "STUCK_FAMILY",
    }
)


def _find_modules():
    for found in pkgutil.walk_packages(diagnosis.__path__, "watchtower.diagnosis."):
        if found.name.split(".")[2] in WITH_SENTENCES:
            yield import_module(found.name)


_VALUES = {name: each for module in _find_modules() for name, each in vars(module).items()}
DOUBTS = {name: each for name, each in _VALUES.items() if isinstance(each, Doubt)}
ADVICE = {
    name: each
    for name, each in _VALUES.items()
    if name.isupper() and isinstance(each, str) and name not in NOT_ADVICE
} | ACTIONS
