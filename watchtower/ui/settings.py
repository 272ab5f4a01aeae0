"""Settings of the pages: the table `[pages]`, with links to pages of other systems.

`links = {logs = "https://logs.example/?job={job}&from={from}"}`. Every value is escaped, so that
the name of a job cannot change where a link leads.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import quote, urlsplit

from msgspec import Meta

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


Links = Annotated[
    Mapping[str, str],
    Meta(description='a table such as {logs = "https://logs.example/?job={job}"}'),
]

Header = Annotated[
    str, Meta(pattern=r"^([A-Za-z0-9-]{1,64})?\Z", description="the name of an HTTP header")
]
Networks = Annotated[
    tuple[str, ...],
    Meta(description='a list of addresses or networks, such as ["10.0.0.7", "10.1.0.0/16"]'),
]
PersonScope = Annotated[Literal["reader", "operator"], Meta(description='"reader" or "operator"')]
Hours = Annotated[float, Meta(ge=0.1, le=8760, description="0.1 to 8760")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """Settings of operators for the pages: additions, and who may open them."""

    links: Links = field(default_factory=dict)
    """Links on the page of an incident, by name, with placeholders such as {job}."""

    user_header: Header = ""
    """Header in which a trusted proxy names the person who sends a request."""
    trusted_proxies: Networks = ()
    """Addresses from which this header counts."""
    user_scope: PersonScope = "reader"
    """Rights of a person whom a proxy names."""
    session_hours: Hours = 24.0
    """How long a login lasts."""

    def __post_init__(self) -> None:
        """Check what the types do not express. Raises ConfigError."""
        check_links(self.links)
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ConfigError(
                    f"`trusted_proxies` has {proxy!r}, allowed is an address or a network, such as "
                    "10.0.0.7 or 10.1.0.0/16"
                ) from None
        if bool(self.user_header) != bool(self.trusted_proxies):
            raise ConfigError(
                "`user_header` and `trusted_proxies` belong together: give both, or neither"
            )
