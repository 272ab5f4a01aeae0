"""Labels: the tower's unique names for jobs. Several jobs may have the same name.

* The job of the first owner has the plain name as its label. A job of another owner with that name
  has the label `NAME@OWNER`. If an agent reports no owners, its processes belong to the job with
  the plain name.
* Further jobs of the same name and owner have `~2`, `~3` and so on behind that label. They come
  from launches that `launches` separates.
* A name that ends like that itself gets `~1` behind it, so that no name leads to such a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from watchtower.fleet.generation import LaunchKey
from watchtower.fleet.launches import Digest, Origin

MAX_PAIRS = 8
"""Most pairs of name and owner of one live job. An agent may report a different owner later, when
it can read more."""

MAX_TWINS = 64
"""Most live jobs of one name and owner. Processes of further ones are not watched."""

MAX_PAST_LAUNCHES = 64
"""Launches of one job that are stored beside one per rank. A restart may have new ones."""

MAX_APART = 64
"""Parties of one label that are known not to be its job. Beyond it, the oldest are dropped."""


class Labels:
    """Labels of the live jobs, by the names, owners and launches that agents report."""

    def __init__(self, holder_of: Callable[[str], str | None]) -> None:
        """`holder_of` returns the owner of a label: "" if not known, None if there is no job."""
        self._holder_of = holder_of
        self._live: dict[tuple[str, str], dict[str, None]] = {}
        self._pairs: dict[str, list[tuple[str, str]]] = {}
        self._launches: dict[str, dict[LaunchKey, Origin]] = {}
        self._by_launch: dict[LaunchKey, str] = {}
        self._by_origin: dict[tuple[str, str, Digest], tuple[str, LaunchKey]] = {}
        """By name, owner, and rendezvous or launcher: the label and the launch that joined last."""
        self._apart: dict[str, dict[Digest, None]] = {}

    def find(self, name: str, owner: str) -> str:
        """Return the first label of this name and owner: the live job's, else of a new job.

        The loop ends soon for any names, because each step makes the label longer and the length of
        names is limited.
        """
        live = next(iter(self._live.get((name, owner), ())), None)
        if live is not None:
            return _base_of(live)
        label = plain_label(name)
        while owner and self._holder_of(label) not in (None, "", owner):
            label = plain_label(f"{label}@{owner}")
        return label

    def find_live(self, name: str, owner: str) -> str | None:
        """Return the first label of this name and owner if its job is live; else None."""
        live = self._live.get((name, owner), {})
        return next((label for label in live if _base_of(label) == label), None)

    def list_live(self, name: str, owner: str) -> list[str]:
        """Return the labels of all live jobs of this name and owner, in their order."""
        live = self._live.get((name, owner), {})
        return sorted(live, key=lambda label: (_base_of(label) != label, len(label), label))

    def list_all(self, name: str, owner: str) -> Iterator[str]:
        """Yield the labels that jobs of this name and owner may have, in their order."""
        base = self.find(name, owner)
        return chain([base], (f"{base}~{number}" for number in range(2, MAX_TWINS + 1)))

    def is_live(self, name: str, owner: str, label: str) -> bool:
        """Return whether this is the label of a live job of this name and owner."""
        return label in self._live.get((name, owner), ())

    def find_free(self, name: str, owner: str) -> str | None:
        """Return the first label without a live job; None if there are `MAX_TWINS`."""
        live = self._live.get((name, owner), {})
        return next(
            (
                label
                for label in self.list_all(name, owner)
                if label not in live
                and label not in self._pairs
                and self._holder_of(label) in (None, "", owner)
            ),
            None,
        )

    def bind(self, name: str, owner: str, label: str) -> bool:
        """Record a name and owner of the live job with this label; False if that changes nothing.

        A name and owner have one job without a number. It stays the first one that was recorded.
        """
        live = self._live.get((name, owner), ())
        if label in live or (_base_of(label) == label and self.find_live(name, owner) is not None):
            return False
        pairs = self._pairs.setdefault(label, [])
        pairs.append((name, owner))
        self._live.setdefault((name, owner), {})[label] = None
        if len(pairs) > MAX_PAIRS:
            self._release(pairs.pop(0), label)
        return True

    def drop(self, label: str) -> None:
        """Remove a job that has ended."""
        for pair in self._pairs.pop(label, ()):
            self._release(pair, label)
        for key, origin in self._launches.pop(label, {}).items():
            self._forget(label, key, origin)
        self._apart.pop(label, None)

    def find_launch(self, key: LaunchKey) -> str | None:
        """Return the label of the job that a launch has joined; None if it has not."""
        return self._by_launch.get(key)

    def find_origin(self, key: LaunchKey, digest: Digest) -> str | None:
        """Return the label that a launch with this rendezvous or launcher has joined last."""
        last = self._by_origin.get((key.name, key.owner, digest)) if digest else None
        return last[0] if last is not None else None

    def origin_of(self, label: str, key: LaunchKey) -> Origin | None:
        """Return the origin of a launch that has joined a job; None if it has not."""
        return self._launches.get(label, {}).get(key)

    def join(self, label: str, key: LaunchKey, origin: Origin, ranks: int) -> None:
        """Record that a launch is of this job, which has so many ranks."""
        launches = self._launches.setdefault(label, {})
        launches[key] = origin
        self._by_launch[key] = label
        for digest in filter(None, (origin.party, origin.launcher)):
            self._by_origin[key.name, key.owner, digest] = label, key
        while len(launches) > MAX_PAST_LAUNCHES + ranks:
            oldest = next(iter(launches))
            self._forget(label, oldest, launches.pop(oldest))

    def joined_first(self, label: str, one: LaunchKey, other: LaunchKey) -> LaunchKey:
        """Return which of two launches of a job has joined first."""
        return next((key for key in self._launches.get(label, ()) if key in (one, other)), one)

    def part(self, label: str, party: Digest) -> list[LaunchKey]:
        """Separate a party from this job for good. Return its launches."""
        launches = self._launches.get(label, {})
        parted = [key for key, origin in launches.items() if origin.party == party]
        for key in parted:
            self._forget(label, key, launches.pop(key))
        apart = self._apart.setdefault(label, {})
        apart[party] = None
        while len(apart) > MAX_APART:
            del apart[next(iter(apart))]
        return parted

    def is_apart(self, label: str, party: Digest) -> bool:
        """Return whether a party was separated from this job."""
        return party in self._apart.get(label, ())

    def _release(self, pair: tuple[str, str], label: str) -> None:
        live = self._live.get(pair, {})
        live.pop(label, None)
        if not live:
            self._live.pop(pair, None)

    def _forget(self, label: str, key: LaunchKey, origin: Origin) -> None:
        if self._by_launch.get(key) == label:
            del self._by_launch[key]
        for digest in (origin.party, origin.launcher):
            if self._by_origin.get((key.name, key.owner, digest)) == (label, key):
                del self._by_origin[key.name, key.owner, digest]


def plain_label(name: str) -> str:
    """Return the label of a name: the name itself, unless it looks like a label of a twin."""
    _, tilde, number = name.rpartition("~")
    return f"{name}~1" if tilde and number.isdigit() else name


def _base_of(label: str) -> str:
    """Return the label of the first job of the same name and owner."""
    base, tilde, number = label.rpartition("~")
    return base if tilde and number.isdigit() and number != "1" else label
