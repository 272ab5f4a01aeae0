"""Which ranks share which groups in a job of tensor, data and pipeline (and expert) parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from watchtower.wire.collectives import ProcessGroup, format_members, name_group


@dataclass(frozen=True)
class Layout:
    """Tensor ranks are neighbours, then data, then pipeline stages, as Megatron orders them."""

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    """Splits each data parallel group into groups of so many."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.data * self.pipeline

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Return (tensor, data, pipeline)."""
        rest, tensor = divmod(rank, self.tensor)
        stage, data = divmod(rest, self.data)
        return tensor, data, stage

    def rank_at(self, tensor: int, data: int, stage: int) -> int:
        """Return the rank with these coordinates."""
        return (stage * self.data + data) * self.tensor + tensor

    @cached_property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """Members by name; names are unique, such as "tp3"."""
        groups: dict[str, list[int]] = {"world": list(range(self.size))}
        for rank in range(self.size):
            for name in self.names_of(rank)[1:]:
                groups.setdefault(name, []).append(rank)
        return {name: tuple(members) for name, members in groups.items()}

    def names_of(self, rank: int) -> list[str]:
        """Name the groups of a rank: the world, then those with more than one member."""
        tensor, data, stage = self.coordinates(rank)
        names = ["world"]
        if self.tensor > 1:
            names.append(f"tp{stage * self.data + data}")
        if self.data > 1:
            names.append(f"dp{stage * self.tensor + tensor}")
        if self.expert > 1:
            names.append(f"ep{stage * self.tensor + tensor}.{data // self.expert}")
        return names

    def neighbour(self, rank: int, step: int) -> int | None:
        """Return the rank of the next (1) or previous (-1) stage, null beyond the ends."""
        tensor, data, stage = self.coordinates(rank)
        if not 0 <= stage + step < self.pipeline:
            return None
        return self.rank_at(tensor, data, stage + step)


def make_groups(groups: dict[str, tuple[int, ...]]) -> dict[str, ProcessGroup]:
    """Describe groups as the wire does; equal members are told apart by the order of creation."""
    made: dict[str, ProcessGroup] = {}
    seen: dict[str, int] = {}
    for name, members in groups.items():
        text = format_members(members)
        order = seen.get(text, 0)
        seen[text] = order + 1
        made[name] = ProcessGroup(id=name_group(text, order), members=text, order=order, name=name)
    return made
