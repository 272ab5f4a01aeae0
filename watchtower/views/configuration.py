"""The configuration of a live job's ranks and nodes, as the API returns it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from watchtower.fleet.configuration import Compared
from watchtower.fleet.job_findings import compare_nodes, compare_ranks
from watchtower.views.advisories import make_scene
from watchtower.views.moment import Moment
from watchtower.writing.ranksets import format_ranks

MAX_GROUPS = 16
"""Values of one name in an answer, those of most members first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueGroup:
    """One value, and who has it."""

    value: str
    """"not set" if the name is not set. Secrets are masked on the node: "[hidden]"."""
    members: str
    """Ranks ("0-6,8"), or names of nodes."""
    count: int
    """Number of these ranks or nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredView:
    """One name of the configuration."""

    name: str
    """A variable of the environment, or words in lower case: "limit memlock", "mtu eth0"."""
    is_of_nodes: bool
    """Whether it is of the nodes, and not of the ranks."""
    difference: str
    """What a difference means: "normal", "suspicious", "meeting" (the ranks cannot meet; innocent
    after they have) or "fatal"."""
    value_groups: list[ValueGroup]
    """The values, that of most members first. One group: all have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationView:
    """What the ranks and nodes of a live job are set up with, as far as the agents may send it."""

    items: list[ConfiguredView]
    known_ranks: int
    """Number of live ranks whose configuration is known."""
    rank_count: int
    """Number of live ranks."""


def view_configuration(moment: Moment, name: str) -> ConfigurationView | None:
    """Return the configuration of a live job; None if it is not live. Differences come first."""
    job = moment.find(name)
    if job is None:
        return None
    scene = make_scene(moment)
    live = list(job.attempt.live())
    known = sum(moment.configurations.find(r.vitals.configuration) is not None for r in live)
    items = [
        *_view(compare_ranks(scene, job), format_ranks, is_of_nodes=False),
        *_view(compare_nodes(scene, job), ", ".join, is_of_nodes=True),
    ]
    items.sort(key=lambda each: len(each.value_groups) == 1)
    return ConfigurationView(items=items, known_ranks=known, rank_count=len(live))


Member = TypeVar("Member", bound=Hashable)


def _view(
    found: Iterable[Compared[Member]],
    write: Callable[[Sequence[Member]], str],
    *,
    is_of_nodes: bool,
) -> list[ConfiguredView]:
    return [
        ConfiguredView(
            name=each.name,
            is_of_nodes=is_of_nodes,
            difference=each.weight.value,
            value_groups=[
                ValueGroup(value=value, members=write(members), count=len(members))
                for value, members in each.groups[:MAX_GROUPS]
            ],
        )
        for each in found
    ]
