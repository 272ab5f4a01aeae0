"""The processes whose environment contains a rank that cannot be right: one sentence, bounded."""

from __future__ import annotations

from collections.abc import Callable

MAX_KNOWN = 1024
"""Processes that are stored. Further ones are skipped until one of these has ended."""

MAX_OWNERS = 3
"""Owners that the sentence names, with one process each."""


class RankMistakes:
    """Errors of the ranks in the environments of processes, by pid."""

    def __init__(self, find_owner: Callable[[int], str]) -> None:
        self._find_owner = find_owner
        self._known: dict[int, tuple[str, str]] = {}
        """Owner and mistake, by pid."""

    def note(self, pid: int, mistake: str) -> None:
        """Record the mistake of a process; "" if it has none."""
        if not mistake:
            self._known.pop(pid, None)
        elif pid in self._known or len(self._known) < MAX_KNOWN:
            self._known[pid] = self._find_owner(pid), mistake

    def __str__(self) -> str:
        """Return one process for each owner, and what to do; empty if there is no mistake."""
        by_owner: dict[str, tuple[int, str]] = {}
        for pid, (owner, mistake) in sorted(self._known.items()):
            by_owner.setdefault(owner, (pid, mistake))
        if not by_owner:
            return ""
        shown = [
            f"pid {pid} of {owner[:64] or 'an unknown owner'}: {mistake}"
            for owner, (pid, mistake) in list(by_owner.items())[:MAX_OWNERS]
        ]
        rest = len(self._known) - len(shown)
        more = f" (and {rest} more processes)" if rest else ""
        return f"wrong rank variables: {'; '.join(shown)}{more}; correct them where the job starts"
