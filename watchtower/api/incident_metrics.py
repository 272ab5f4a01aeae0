"""Metrics of open incidents: series for alert rules, and labels for the text of an alert.

The labels of `watchtower_incident_open` never change, so an alert made from them stays one alert.
What a later verdict may correct is on `watchtower_incident_info` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from prometheus_client.core import Metric

from watchtower.alerts.labels import AlertLinks, has_alert, identify
from watchtower.api import metric_table as table
from watchtower.api.families import family_of
from watchtower.tower.job_measures import JobMeasure
from watchtower.writing.printable import label

CLOSED_SHOWN_S = 600.0
"""Seconds after its last scrape as open during which a closed incident is exported as 0. The
documented rules use values of the last 300 s, so that every rule sees the 0."""

MAX_SUSPECTS = 16
"""Suspects of an incident that have series."""

MAX_CLOSED_SHOWN = 1000
"""Closed incidents that are exported: the same number as for open ones."""


class IncidentMetrics:
    """The series of incidents.

    It stores which incidents were exported as open, and exports 0 after they close. A missing
    series alone could also mean that the tower restarts.
    """

    def __init__(self, public_url: str) -> None:
        self._links = AlertLinks(public_url=public_url)
        self._scraped: dict[str, tuple[list[str], float]] = {}
        """By incident: its labels and the time of its last scrape as open, oldest first."""

    def collect(
        self, shown: Sequence[JobMeasure], open_ids: Collection[str], now: float
    ) -> Iterator[Metric]:
        """Yield the metric families of the open incidents of `shown` and of recently closed ones.

        `open_ids` are all open incidents, also those that are not in `shown`.
        """
        opened, opened_at = family_of(table.INCIDENT_OPEN), family_of(table.INCIDENT_OPENED)
        acked, info = family_of(table.INCIDENT_ACKED), family_of(table.INCIDENT_INFO)
        suspects, ended = family_of(table.INCIDENT_SUSPECT), family_of(table.INCIDENT_ENDED)
        silenced, shadow = family_of(table.INCIDENT_SILENCED), family_of(table.SHADOW_INCIDENT_OPEN)
        self._forget_old(open_ids, now)
        for job in filter(_has_series, shown):
            incident = job.incident
            assert incident is not None
            labels = list(identify(incident))
            identity = labels[:2]
            info.add_metric([*identity, *self._named(job)], 1)
            silenced.add_metric(identity, float(job.is_incident_silenced))
            if job.has_died:
                ended.add_metric(labels, 1)
                continue
            (shadow if incident.shadow else opened).add_metric(labels, 1)
            self._scraped.pop(incident.id, None)
            if not incident.shadow:
                self._scraped[incident.id] = (labels, now)
            opened_at.add_metric(identity, incident.opened_at)
            acked.add_metric(identity, float(incident.ack is not None))
            for suspect in incident.verdict.suspects[:MAX_SUSPECTS]:
                gpu = "" if suspect.gpu is None else str(suspect.gpu)
                suspects.add_metric([incident.id, str(suspect.rank), label(suspect.node), gpu], 1)
        for ident, (labels, _) in self._scraped.items():
            if ident not in open_ids:
                opened.add_metric(labels, 0)
        yield from (opened, shadow, ended, opened_at, acked, silenced, info, suspects)

    def _forget_old(self, open_ids: Collection[str], now: float) -> None:
        closed = [ident for ident in self._scraped if ident not in open_ids]
        many = len(closed) - MAX_CLOSED_SHOWN
        for number, ident in enumerate(closed):
            if number < many or now - self._scraped[ident][1] >= CLOSED_SHOWN_S:
                del self._scraped[ident]

    def _named(self, job: JobMeasure) -> tuple[str, ...]:
        """Return `cause`, `rank` and `node` of the first suspect, `suspects` and `url`."""
        assert job.incident is not None
        ident, verdict = job.incident.id, job.incident.verdict
        cause = verdict.cause.value if verdict.cause else ""
        suspects = verdict.suspects
        rank, node = (str(suspects[0].rank), label(suspects[0].node)) if suspects else ("", "")
        return cause, rank, node, str(len(suspects)), self._links.details(ident)


def _has_series(job: JobMeasure) -> bool:
    """Return whether a job has an open incident, or an end that has an alert."""
    return job.incident is not None and (has_alert(job.incident) or not job.has_died)
