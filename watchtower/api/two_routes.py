"""Detects that on-call may be notified twice: by a direct destination and by rules of Prometheus.

The tower cannot know which rules a Prometheus has, nor where its Alertmanager sends alerts. It
knows that a Prometheus scrapes it. Alertmanager itself merges both routes, because the labels are
the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from watchtower.tower.tower import Tower

log = logging.getLogger("watchtower.alerts")

SCRAPE_HEADER = "x-prometheus-scrape-timeout-seconds"
"""Prometheus and compatible scrapers send it. Browsers and commands do not."""

MERGED = frozenset({"alertmanager"})
"""Destinations that receive both routes as one alert."""


class TwoRoutes:
    """Warns once, with the first scrape of a Prometheus."""

    def __init__(self, tower: Tower, destinations: Iterable[str]) -> None:
        """`destinations` are the names of the direct destinations."""
        self._tower = tower
        self._doubled = sorted(set(destinations) - MERGED)
        if tower.shadow.everything:
            self._doubled = []

    def note_scrape(self, headers: Mapping[str, str]) -> None:
        """Check the headers of a request for the metrics."""
        if not self._doubled or SCRAPE_HEADER not in headers:
            return
        names = ", ".join(self._doubled)
        text = (
            f"Prometheus scrapes this tower, and the tower also sends alerts to {names}: if this "
            "Prometheus has the alert rules of watchtower, people are notified twice; use one route"
        )
        self._doubled = []
        self._tower.notes.append(text)
        log.warning("%s", text)
