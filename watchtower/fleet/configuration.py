"""Configurations of ranks and nodes: which the tower knows, and in what those of one job differ."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from watchtower.wire.configuration import MAX_WANTED, Configuration
from watchtower.wire.report import Report

MAX_BODIES = 8192
"""Configurations in memory. A job has some nine: one for each GPU of a node, and the node."""

MAX_BYTES = 32 * 1024 * 1024
"""Their most bytes: one of a real rank has 4 kB. The oldest are dropped, and asked for again."""

NOT_SET = "not set"


class Configurations:
    """The bodies of the digests that agents report."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, str]] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    def find(self, digest: str) -> Mapping[str, str] | None:
        """Return the values of a configuration; None if its body has not come yet."""
        return self._known.get(digest)

    def take(self, report: Report) -> tuple[str, ...]:
        """Keep the bodies of a report. Return its digests whose body is not known."""
        for body in report.bodies:
            if body.digest not in self._known and body.is_intact:
                self._keep(body)
        known = self._known
        unknown = [r.configuration for r in report.ranks if r.configuration not in known]
        if report.configuration not in known:
            unknown.append(report.configuration)
        if not unknown:  # nearly always
            return ()
        return tuple(sorted(set(filter(None, unknown)))[:MAX_WANTED])

    def _keep(self, body: Configuration) -> None:
        size = sum(200 + len(each.name) + len(each.value) for each in body.values)
        self._known[body.digest] = body.as_dict()
        self._sizes[body.digest] = size
        self._bytes += size
        while len(self._known) > MAX_BODIES or self._bytes > MAX_BYTES:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._bytes -= self._sizes.pop(oldest)


class Weight(Enum):
    """What it means that a value is not the same everywhere."""

    NORMAL = "normal"
    SUSPICIOUS = "suspicious"
    MEETING = "meeting"
    """The ranks cannot meet. If they have met, the difference is innocent."""
    FATAL = "fatal"
    """The ranks do not fit together: they hang, fail, or compute something else."""


WEIGHTS: tuple[tuple[str, Weight], ...] = (
    (r"MASTER_ADDR|MASTER_PORT|JAX_COORDINATOR_ADDRESS", Weight.MEETING),
    (r"WORLD_SIZE|TORCHELASTIC_RUN_ID|HOROVOD_SIZE|OMPI_COMM_WORLD_SIZE", Weight.MEETING),
    (r"PL_TORCH_DISTRIBUTED_BACKEND|NCCL_SOCKET_FAMILY|NCCL_COMM_ID", Weight.MEETING),
    (r"nccl|NCCL_(?:ALGO|PROTO|BUFFSIZE|NTHREADS|NET|NET_PLUGIN|CROSS_NIC)", Weight.FATAL),
    (r"declared .*seed.*", Weight.NORMAL),
    (r"declared .*", Weight.FATAL),
    (r"XLA_FLAGS|ACCELERATE_MIXED_PRECISION|NVIDIA_TF32_OVERRIDE", Weight.FATAL),
    # Each rank or node has its own.
    (r"(?:CUDA|HIP|ROCR|NVIDIA)_VISIBLE_DEVICES|SLURM_STEP_GPUS|SLURM_.*_BIND", Weight.NORMAL),
    (r"rdma|channels", Weight.NORMAL),  # rows of their own
    (r"cpus.*|numa nodes|hugepages|limit nofile|PYTHONHASHSEED", Weight.NORMAL),
    (r"NCCL_(?:DEBUG.*|HOSTID|TOPO_.*|GRAPH_DUMP.*)|TORCH_.*FILE.*|TORCH_.*DEBUG.*", Weight.NORMAL),
    (r"OMPI_MCA_(?:ess|orte|pmix|prte|plm|hnp|mpi_yield).*", Weight.NORMAL),
    (r".*", Weight.SUSPICIOUS),
)
"""By name, the first that matches counts."""

# With DOTALL the last `.*` always reaches the end: the time is linear.
_WEIGHTS = tuple((re.compile(rf"\A(?s:{pattern})\Z"), weight) for pattern, weight in WEIGHTS)


def weigh(name: str) -> Weight:
    """Return what it means that this value differs."""
    return next(weight for pattern, weight in _WEIGHTS if pattern.match(name))


Member = TypeVar("Member", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Generic[Member]):
    """One name, and who has which value of it."""

    name: str
    weight: Weight
    groups: tuple[tuple[str, tuple[Member, ...]], ...]
    """The values with those that have them, most members first; of equally many, the value of the
    first member."""

    @property
    def differs(self) -> bool:
        """Whether there are several values."""
        return len(self.groups) > 1

    @property
    def odd(self) -> tuple[Member, ...]:
        """Those without the value of most; none if no value has more members than another."""
        if not self.differs or len(self.groups[0][1]) == len(self.groups[1][1]):
            return ()
        return tuple(member for _, members in self.groups[1:] for member in members)


def compare(
    digests: Iterable[tuple[Member, str]], known: Configurations
) -> Iterator[Compared[Member]]:
    """Yield all names, by name. Equal configurations are compared once, however many have them.

    Only a variable, in upper case, can be "not set". Who lacks anything else does not differ: it
    may not have been read yet, or be of a device that a node does not have.
    """
    members: dict[str, list[Member]] = {}
    for member, digest in digests:
        if digest:
            members.setdefault(digest, []).append(member)
    bodies = {digest: body for digest in members if (body := known.find(digest)) is not None}
    for name in sorted({name for body in bodies.values() for name in body}):
        groups: dict[str, list[Member]] = {}
        for digest, body in bodies.items():
            if name in body or name[0].isupper():
                groups.setdefault(body.get(name, NOT_SET), []).extend(members[digest])
        ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
        yield Compared(
            name=name,
            weight=weigh(name),
            groups=tuple((value, tuple(each)) for value, each in ordered),
        )
