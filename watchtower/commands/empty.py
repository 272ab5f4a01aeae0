"""Explains what a list does not contain: which agents are connected, what they have found, and what
is not watched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from watchtower.commands.client import TowerClient
from watchtower.commands.printing import clean
from watchtower.writing.text import count_ranks, format_count

MAX_NAMED = 5
"""Nodes in one sentence: a fleet may have thousands without ranks."""

NO_RANK = 'See "No rank is found" in docs/install.md.'


def explain_no_jobs(client: TowerClient) -> str:
    """Return why there is no job: no agent is connected, or agents have found no ranks."""
    return f"No jobs. {_describe_agents(client.nodes())} {NO_RANK}"


def explain_no_incidents(client: TowerClient, chosen: str) -> str:
    """Return what the tower watches although there is no incident. `chosen`: the filters."""
    return f"No incidents{chosen}. {_describe_agents(client.nodes())}"


def _describe_agents(answer: dict[str, Any]) -> str:
    number, silent = int(answer["connected"]), int(answer["silent"])
    lost = f" {format_count(silent, 'agent')} stopped reporting." if silent else ""
    if not number:
        return f"No agent is connected.{lost}"
    names = _list_names(list_connected(answer), number)
    is_one, ranks = number == 1, int(answer["rank_count"])
    if ranks:
        seen = f"{'watches' if is_one else 'watch'} {count_ranks(ranks)}"
    else:
        seen = f"{'it has' if is_one else 'they have'} found no ranks"
    verb = "is" if is_one else "are"
    return f"{format_count(number, 'agent')} {verb} connected ({names}) and {seen}.{lost}"


def list_connected(answer: dict[str, Any]) -> list[str]:
    """Return the nodes whose agents report, of those that the tower lists, by name."""
    items = (one for one in answer["items"] if one["has_agent"] and not one["is_silent"])
    return sorted(str(one["node"]) for one in items)


def _list_names(names: Sequence[str], number: int) -> str:
    shown = ", ".join(names[:MAX_NAMED])
    more = number - min(len(names), MAX_NAMED)
    return f"{shown} and {more} more" if more > 0 else shown


MAX_UNWATCHED_SHOWN = 5
"""Lines about processes that are not watched, below a list of jobs."""


def list_unwatched(answer: dict[str, Any]) -> list[str]:
    """Return lines about the processes that seem to be ranks and are not watched; none without."""
    items = answer["items"]
    lines = [
        f"not watched on {clean(str(one['node']))}: {clean(str(one['text']))}"
        for one in items[:MAX_UNWATCHED_SHOWN]
    ]
    shown = sum(int(one["count"]) for one in items[:MAX_UNWATCHED_SHOWN])
    more = int(answer["rank_count"]) - shown
    return [*lines, f"not watched elsewhere: {more} more"] if more > 0 else lines
