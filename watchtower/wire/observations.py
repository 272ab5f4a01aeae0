"""Observations: what the collectors of a node found out about its GPUs, kernel and processes.

The vocabulary is open, so that a new collector needs no new message. The tower stores observations
without interpreting them. Only readers in `watchtower.evidence` and rules know the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from watchtower.wire.bounds import (
    AGE,
    INTEGER,
    Bound,
    bounded,
    characters,
    check_text,
    optional,
    up_to,
)

MAX_OBSERVATIONS = 256
"""Observations of one node: some 8 GPUs with 20 each, and the recent lines of the kernel log."""

MAX_WORD = 128
"""Characters of a source, a subject or a name. A cgroup path may be longer and is cut."""

MAX_OBSERVATION_TEXT = 256
"""Characters of a text: one line of the kernel log without its details."""

NODE = "node"
"""Subject of an observation about the whole node."""

MIG_IS_ON = "MIG is on"
"""Begin of the text about what a GPU does that is divided: several programs use it on purpose."""

GPUS_ALLOWED = "gpus_allowed"
"""Name of the observation of how many GPUs of its node a rank may use, by its environment."""

WRITES_FILE = "writes_file"
"""Family of the observations of files of checkpoints that ranks write. The subject of one is
"file:", the type of the mount, ":", the inode, ":" and the source of the mount."""

SHARES_GPU = "it shares a GPU on purpose"
"""Begin of its text if the rank uses a part of a GPU."""


MAX_VALUE = 1e18
"""The largest counter of a device. A NaN is refused, too."""


def _check_word(field: str, value: str) -> None:
    check_text(field, value, MAX_WORD)
    if not value:
        raise ValueError("an observation needs `source`, `subject` and `name`")


_WORD = Bound(f"0 < len({{}}) <= {MAX_WORD}", _check_word)


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    source=_WORD,
    subject=_WORD,
    name=_WORD,
    unit=characters(MAX_WORD),
    text=characters(MAX_OBSERVATION_TEXT),
    age_s=AGE,
    pid=optional(INTEGER),
    value=optional(up_to(MAX_VALUE)),
)
class Observation:
    """One thing that a collector observed. Source, subject and name identify it: a later
    observation with the same three words replaces it."""

    source: str
    """Name of the collector, such as "kernel_log"."""
    subject: str
    """The thing observed: "node", "pci:0000:3b:00", "gpu:3", "nic:mlx5_0", "pid:4711"."""
    name: str
    """The name of what was observed: "xid.79", "oom_kill". The word before the first dot is its
    family."""
    age_s: float
    """Seconds since it happened or was measured."""
    value: float | None = None
    """A measured number. Null for an event."""
    unit: str = ""
    """Unit of `value`, such as "W"; empty for a count or a code."""
    text: str = ""
    """Details, such as the line of the kernel log."""
    pid: int | None = None
    """Process that the observation is about, in the host's process namespace. If it belongs to a
    rank's process tree: the pid of the rank. Null if no process is named."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Its identity on a node."""
        return self.source, self.subject, self.name

    @property
    def family(self) -> str:
        """The word of its name before the first dot: "xid" of "xid.79"."""
        return self.name.partition(".")[0]


@lru_cache(maxsize=256)
def name_pci(address: str) -> str:
    """Return the subject of a PCI device: "pci:0000:3b:00" of "00000000:3B:00.0" or "0000:3b:00".

    The kernel writes a domain of four digits and NVML one of eight. A GPU has one function.
    """
    device = address.lower().partition(".")[0]
    domain, _, rest = device.partition(":")
    return f"pci:{domain[-4:].zfill(4)}:{rest}" if rest.count(":") == 1 else f"pci:{device}"
