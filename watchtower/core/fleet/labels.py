"""Labels: the tower's unique names for jobs. Two owners may have jobs with the same name.

The job of the first owner has the plain name as its label. A job of another owner with that name is
a different job with the label `NAME@OWNER`. If an agent reports no owners, its processes belong to
the job with the plain name.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_PAIRS = 8
"""Most pairs of name and owner of one live job. An agent may report a different owner later, when
it can read more."""


class Labels:
    """Labels of the live jobs, by the names and owners that agents report."""

    def __init__(self, holder_of: Callable[[str], str | None]) -> None:
        """`holder_of` returns the owner of a label: "" if not known, None if there is no job."""
        self._holder_of = holder_of
        self._live: dict[tuple[str, str], str] = {}
        self._pairs: dict[str, list[tuple[str, str]]] = {}

    def find(self, name: str, owner: str) -> str:
        """Return the label of the live job; without one, the label that a new job would get.

        The loop ends soon for any names, because each step makes the label longer and the length of
        names is limited.
        """
        label = self.find_live(name, owner)
        if label is not None:
            return label
        label = name
        while owner and self._holder_of(label) not in (None, "", owner):
            label = f"{label}@{owner}"
        return label

    def find_live(self, name: str, owner: str) -> str | None:
        """Return the label of the live job with this name and owner; None without one."""
        return self._live.get((name, owner))

    def bind(self, name: str, owner: str, label: str) -> None:
        """Record a name and owner of the live job with this label."""
        pairs = self._pairs.setdefault(label, [])
        pairs.append((name, owner))
        self._live[name, owner] = label
        if len(pairs) > MAX_PAIRS:
            self._live.pop(pairs.pop(0), None)

    def drop(self, label: str) -> None:
        """Remove a job that has ended."""
        for pair in self._pairs.pop(label, ()):
            self._live.pop(pair, None)
