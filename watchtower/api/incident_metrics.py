"""Metrics of open incidents: series for alert rules, and labels for the text of an alert.

The labels `incident`, `training_job` and `shared_cause` of a series never change, so an alert made
from them stays one alert. What a later verdict may correct is on `watchtower_incident_info` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from watchtower.printable import label
from watchtower.tower.live import LiveJob
from watchtower.wire.verdict import SharedCause

CLOSED_SHOWN_S = 600.0
"""Seconds after its last scrape as open during which a closed incident is exported as 0. The
documented rules use values of the last 300 s, so that every rule sees the 0."""

MAX_CLOSED_SHOWN = 1000
"""Closed incidents that are exported: the same number as for open ones."""

_IDENTITY = ["incident", "training_job"]


def name_shared_cause(cause: SharedCause | None) -> str:
    """Return "mount nfs1:/data" as a label value; "" if no shared cause is known."""
    return label(f"{cause.kind} {cause.name}") if cause else ""


def is_open(live: LiveJob) -> bool:
    """Return whether the incident of a job is open."""
    return live.incident is not None and live.incident.closed_at is None


class IncidentMetrics:
    """The series of incidents.

    It stores which incidents were exported as open, and exports 0 after they close. A missing
    series alone could also mean that the tower restarts.
    """

    def __init__(self, public_url: str) -> None:
        self._public_url = public_url
        self._scraped: dict[str, tuple[list[str], float]] = {}
        """By incident: its labels and the time of its last scrape as open, oldest first."""

    def collect(
        self, shown: Sequence[LiveJob], open_ids: Collection[str], now: float
    ) -> Iterator[Metric]:
        """Yield the metric families of the open incidents of `shown` and of recently closed ones.

        `open_ids` are all open incidents, also those that are not in `shown`.
        """
        opened = GaugeMetricFamily(
            "watchtower_incident_open",
            "1 while an incident is open, 0 for ten minutes after it was closed.",
            labels=[*_IDENTITY, "shared_cause"],
        )
        opened_at = GaugeMetricFamily(
            "watchtower_incident_opened_timestamp_seconds",
            "Time at which an open incident was opened.",
            labels=_IDENTITY,
        )
        acked = GaugeMetricFamily(
            "watchtower_incident_acked",
            "1 while an open incident is acknowledged.",
            labels=_IDENTITY,
        )
        info = GaugeMetricFamily(
            "watchtower_incident_info",
            "Always 1. The labels describe the current verdict of an open incident.",
            labels=[*_IDENTITY, "cause", "rank", "node", "suspects", "url"],
        )
        self._forget_old(open_ids, now)
        for live in shown:
            if live.incident is None or live.incident.closed_at is not None:
                continue
            identity = [live.incident.id, label(live.name)]
            labels = [*identity, name_shared_cause(live.incident.verdict.shared_cause)]
            self._scraped.pop(live.incident.id, None)
            self._scraped[live.incident.id] = (labels, now)
            opened.add_metric(labels, 1)
            opened_at.add_metric(identity, live.incident.opened_at)
            acked.add_metric(identity, float(live.incident.ack is not None))
            info.add_metric([*identity, *self._named(live)], 1)
        for ident, (labels, _) in self._scraped.items():
            if ident not in open_ids:
                opened.add_metric(labels, 0)
        yield from (opened, opened_at, acked, info)

    def _forget_old(self, open_ids: Collection[str], now: float) -> None:
        closed = [ident for ident in self._scraped if ident not in open_ids]
        many = len(closed) - MAX_CLOSED_SHOWN
        for number, ident in enumerate(closed):
            if number < many or now - self._scraped[ident][1] >= CLOSED_SHOWN_S:
                del self._scraped[ident]

    def _named(self, live: LiveJob) -> tuple[str, ...]:
        """Return `cause`, `rank` and `node` of the first suspect, `suspects` and `url`."""
        assert live.incident is not None
        ident, verdict = live.incident.id, live.incident.verdict
        cause = verdict.cause.value if verdict.cause else ""
        suspects = verdict.suspects
        rank, node = (str(suspects[0].rank), label(suspects[0].node)) if suspects else ("", "")
        url = f"{self._public_url}/api/v1/incidents/{ident}?format=text" if self._public_url else ""
        return cause, rank, node, str(len(suspects)), url
