"""Settings of the pages: the table `[pages]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from watchtower.ui.links import check_links

Links = Annotated[
    Mapping[str, str],
    Meta(description='a table such as {logs = "https://logs.example/?job={job}"}'),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """What operators add to the pages."""

    links: Links = field(default_factory=dict)
    """Links on the page of an incident, by name, with placeholders such as {job}."""

    def __post_init__(self) -> None:
        """Check the templates. Raises ConfigError."""
        check_links(self.links)
