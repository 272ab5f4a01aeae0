"""Settings of the pages: the table `[pages]`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from watchtower.service.settings import ConfigError
from watchtower.ui.links import check_links

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
