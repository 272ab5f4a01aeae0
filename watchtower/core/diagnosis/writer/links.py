"""Sentences about a link that failed."""

from __future__ import annotations

from watchtower.core.reading.links import LinkFault
from watchtower.core.text import clean, say_duration


def say_link_fault(fault: LinkFault) -> str:
    """Return "gpu-042, 12 s ago: eth1 lost its link and does not have it now"."""
    ago = say_duration(fault.observation.age_s)
    return f"{clean(fault.node, 64)}, {ago} ago: {clean(fault.observation.text, 160)}"


def name_link(fault: LinkFault) -> dict[str, object]:
    """Return what advice names: the node and the link."""
    return {"node": clean(fault.node, 64), "link": clean(fault.link, 64)}
