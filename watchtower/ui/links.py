"""Link templates: pages of other systems about the job, the node and the time of an incident.

`[pages] links = {logs = "https://logs.example/?job={job}&from={from}"}`. Every value is escaped, so
that the name of a job cannot change where a link leads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from watchtower.service.settings import ConfigError
from watchtower.writing.times import rfc3339

MAX_LINKS = 8
"""Links on a page: more do not fit in a row."""

MAX_TEMPLATE = 1024
"""Characters of one template. Browsers and proxies take URLs of a few thousand characters."""

MAX_LINK_NAME = 32
"""Characters of the text of a link, which a phone shows in one line."""

BEFORE_S, AFTER_S = 900.0, 300.0
"""`{from}` and `{to}` include so many seconds before the stall and after its end."""

OPEN_S = 3600.0
"""Seconds after the opening to which `{to}` extends while an incident is open."""

PLACEHOLDERS = (
    "job",
    "node",
    "rank",
    "incident",
    "user",
    "scheduler_id",
    "from",
    "to",
    "from_ms",
    "to_ms",
)
"""The names in a template: `from` and `to` as RFC 3339, or as UNIX milliseconds."""

_HOST_NEEDED = (
    "must begin with https:// or http:// and a host, without a placeholder, a user or a password"
)

_PLACE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link as a page shows it."""

    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSubject:
    """The subject of a link."""

    job: str
    incident: str
    node: str = ""
    rank: int | None = None
    user: str = ""
    scheduler_id: str = ""
    began_at: float
    """UNIX seconds: the begin of the stall."""
    ended_at: float | None
    """None while the incident is open."""


def check_links(links: Mapping[str, str]) -> None:
    """Raise ConfigError for a template that is not valid."""
    if len(links) > MAX_LINKS:
        raise ConfigError(f"`links` in [pages] has {len(links)} entries, allowed are {MAX_LINKS}")
    for name, template in links.items():
        if not 1 <= len(name) <= MAX_LINK_NAME or not name.isprintable():
            raise ConfigError(
                f"`links` in [pages]: the name {name[:MAX_LINK_NAME]!r} must have 1 to "
                f"{MAX_LINK_NAME} printable characters"
            )
        if mistake := _find_mistake(template):
            raise ConfigError(f"`links.{name}` in [pages] {mistake}")


def _find_mistake(template: str) -> str:
    if len(template) > MAX_TEMPLATE or not all("!" <= each <= "~" for each in template):
        return f"must be a URL of at most {MAX_TEMPLATE} ASCII characters without spaces"
    unknown = [place for place in _PLACE.findall(template) if place not in PLACEHOLDERS]
    if unknown:
        shown = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
        return f"has the unknown placeholder {{{unknown[0]}}}: known are {shown}"
    bare = _PLACE.sub("", template)
    if "{" in bare or "}" in bare:
        return "has a brace without its partner"
    return "" if _has_fixed_host(template) else _HOST_NEEDED


def _has_fixed_host(template: str) -> bool:
    """Whether it leads to one host, whatever the values are, and contains no password."""
    try:
        parts = urlsplit(template)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_valid and "{" not in parts.netloc and parts.username is None


def fill_links(links: Mapping[str, str], subject: LinkSubject) -> list[Link]:
    """Return the links about a subject. A link is left out if a value of it is not known."""
    began_at = subject.began_at - BEFORE_S
    ended_at = began_at + BEFORE_S + OPEN_S
    if subject.ended_at is not None:
        ended_at = subject.ended_at + AFTER_S
    values = {
        "job": subject.job,
        "node": subject.node,
        "rank": "" if subject.rank is None else str(subject.rank),
        "incident": subject.incident,
        "user": subject.user,
        "scheduler_id": subject.scheduler_id,
        "from": rfc3339(began_at),
        "to": rfc3339(ended_at),
        "from_ms": str(round(began_at * 1000)),
        "to_ms": str(round(ended_at * 1000)),
    }
    filled = []
    for name, template in links.items():
        if all(values[place] for place in _PLACE.findall(template)):
            url = _PLACE.sub(lambda found: quote(values[found[1]], safe=""), template)
            filled.append(Link(name=name, url=url))
    return filled
