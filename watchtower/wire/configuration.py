"""Configuration: what a rank, or a node, is set up with, as names and values.

Thousands of ranks have the same. So a report has only digests, and the tower asks for a body that
it does not know. A digest is computed from the body: a wrong body cannot take the place of one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.wire.bounds import NAME, bounded, entries

MAX_VALUES = 192
"""Names of one configuration. A rank of a large job has some 60."""

DIGEST_CHARACTERS = 32
"""128 bits in hexadecimal digits: two bodies with one digest cannot be found."""

MAX_WANTED = 16
"""Bodies of one report, and digests of one reply: those of a node with ranks of two jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(name=NAME, value=NAME)
class Configured:
    """One value. Secrets in it were masked on the node."""

    name: str
    """A variable ("NCCL_DEBUG"), or words in lower case: "limit memlock", "torch"."""
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(digest=NAME, values=entries(MAX_VALUES))
class Configuration:
    """All values of a rank or a node, by name."""

    digest: str
    values: tuple[Configured, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Configuration:
        """Return the configuration with these values; of too many, the first ones by name."""
        chosen = tuple(
            Configured(name=name, value=value)
            for name, value in sorted(values.items())[:MAX_VALUES]
        )
        return cls(digest=compute_digest(chosen), values=chosen)

    @property
    def is_intact(self) -> bool:
        """Whether the digest is that of the values."""
        return compute_digest(self.values) == self.digest

    def as_dict(self) -> dict[str, str]:
        """Return the values by name."""
        return {each.name: each.value for each in self.values}


def compute_digest(values: tuple[Configured, ...]) -> str:
    """Return the digest of the values of a configuration."""
    text = json.dumps([[each.name, each.value] for each in values])
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]
