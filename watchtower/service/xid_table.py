"""The meaning of the Xid errors of NVIDIA's driver, for the verdict and for the agent's metrics.

The table is `xids.toml`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchtower.service.toml_tables import parse_toml, read_table

BLAMELESS = frozenset({"application", "info", "secondary"})
"""Classes of which the GPU is not the cause."""

IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class XidMeaning:
    """One entry of the table."""

    means: str
    device_class: str
    action: str

    @property
    def is_fault(self) -> bool:
        """Whether the GPU is to blame, and something must be done about it."""
        return self.device_class not in BLAMELESS and self.action != IGNORE


UNKNOWN_XID = XidMeaning(
    means="an error that is not in the table", device_class="gpu", action="contact_support"
)


CLASSES = BLAMELESS | {"gpu", "memory", "nvlink", "pcie", "firmware", "power"}
"""All classes."""

MAX_CODES = 100_000
"""A larger code is not an Xid."""

FILE = "WATCHTOWER_XIDS_FILE"
"""Variable with the path of a table of the operator's. Its entries come before ours."""


def _expand(codes: Iterable[str]) -> Iterator[int]:
    for text in codes:
        first, _, last = text.partition("-")
        yield from range(int(first), min(int(last or first), MAX_CODES) + 1)


def read_meanings(content: Mapping[str, Any]) -> dict[int, XidMeaning]:
    """Return the meanings of the codes in a table. Raises ValueError."""
    found: dict[int, XidMeaning] = {}
    for entry in content.get("xid", []):
        try:
            meaning = XidMeaning(
                means=entry["means"], device_class=entry["class"], action=entry["action"]
            )
            codes = [str(code) for code in entry["codes"]]
        except KeyError as error:
            raise ValueError(f"an entry has no {error}") from error
        if meaning.device_class not in CLASSES:
            raise ValueError(f"invalid class {meaning.device_class!r}: use {sorted(CLASSES)}")
        found |= dict.fromkeys(_expand(codes), meaning)
    return found


_OURS = read_meanings(read_table("watchtower.service", "xids"))
ACTIONS = frozenset(each.action for each in (*_OURS.values(), UNKNOWN_XID)) - {IGNORE}
"""Actions that an error may ask for."""


def read_override(path: str) -> dict[int, XidMeaning]:
    """Return the table of an operator; empty without a path. Ends the program if it is invalid."""
    if not path:
        return {}
    try:
        found = read_meanings(parse_toml(Path(path).read_text("utf-8")))
        wrong = {each.action for each in found.values()} - ACTIONS - {IGNORE}
        if wrong:
            raise ValueError(f"invalid action {min(wrong)!r}: use {sorted({*ACTIONS, IGNORE})}")
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"watchtower: cannot use the Xid table of {FILE}: {error}") from error
    return found


_TABLE = _OURS | read_override(os.environ.get(FILE, ""))


def explain_xid(code: int) -> XidMeaning:
    """Return the meaning of a code. An unknown code is an error of the GPU."""
    return _TABLE.get(code, UNKNOWN_XID)
