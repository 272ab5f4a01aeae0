"""The class of an actor of Ray. The actors of one class that one node starts for a job are a group.

Ray gives actors no numbers. Their order of start numbers them on their node. Programs that need a
rank set one, and that counts.
"""

from __future__ import annotations

from agent.ranks.launchers import load_facts
from agent.ranks.sources.source import Membership, Shown, Source


def find_class(shown: Shown) -> Membership | None:
    """Return the place of an actor in the group of its class; None for one of a pool."""
    name = shown.actor
    if not name or name.startswith(load_facts().pools):
        return None
    return Membership(group=name, role=name)


SOURCE = Source(find_member=find_class)
