"""The meaning of the Xid errors of NVIDIA's driver, for the verdict and for the agent's metrics.

The table is `xids.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources

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


def _expand(codes: Iterable[str]) -> Iterator[int]:
    for text in codes:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


_TEXT = resources.files("watchtower").joinpath("xids.toml").read_text("utf-8")
_TABLE = {
    code: XidMeaning(means=entry["means"], device_class=entry["class"], action=entry["action"])
    for entry in tomllib.loads(_TEXT)["xid"]
    for code in _expand(entry["codes"])
}
ACTIONS = frozenset(each.action for each in (*_TABLE.values(), UNKNOWN_XID)) - {IGNORE}
"""What an error may ask for."""


def explain_xid(code: int) -> XidMeaning:
    """Return the meaning of a code. An unknown code is an error of the GPU."""
    return _TABLE.get(code, UNKNOWN_XID)
