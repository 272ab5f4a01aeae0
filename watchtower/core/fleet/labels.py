"""Labels: what the tower calls the job of one name and one owner.

The first owner of a name has the plain name. Another owner's job of that name is `NAME@OWNER`: it
is another job, whatever its processes say. An agent that knows no owners means whatever has the
name.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_PAIRS = 8
"""Names and owners remembered of one live job: an agent that learns more says another owner."""


class Labels:
    """Labels of the live jobs, by what agents call them."""

    def __init__(self, holder_of: Callable[[str], str | None]) -> None:
        """`holder_of` returns the owner of a label, "" if that is not known, None without a job."""
        self._holder_of = holder_of
        self._live: dict[tuple[str, str], str] = {}
        self._pairs: dict[str, list[tuple[str, str]]] = {}

    def find(self, name: str, owner: str) -> str:
        """Return the label of a name and its owner: the live job's, else the one it would get.

        Names are bounded, and each step makes the label longer: it ends soon, whoever chose them.
        """
        label = self.find_live(name, owner)
        if label is not None:
            return label
        label = name
        while owner and self._holder_of(label) not in (None, "", owner):
            label = f"{label}@{owner}"
        return label

    def find_live(self, name: str, owner: str) -> str | None:
        """Return the label of the live job that is known by this name and owner."""
        return self._live.get((name, owner))

    def bind(self, name: str, owner: str, label: str) -> None:
        """Note that the live job with this label is called so."""
        pairs = self._pairs.setdefault(label, [])
        pairs.append((name, owner))
        self._live[name, owner] = label
        if len(pairs) > MAX_PAIRS:
            self._live.pop(pairs.pop(0), None)

    def drop(self, label: str) -> None:
        """Forget a job that is over."""
        for pair in self._pairs.pop(label, ()):
            self._live.pop(pair, None)
