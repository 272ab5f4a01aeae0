"""The parts of the incident page about memory: earlier incidents, and "was this right?"."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.tower.feedback import FeedbackView, view_feedback
from watchtower.tower.incident_overviews import IncidentOverview
from watchtower.tower.similar_incidents import SimilarList, find_similar
from watchtower.tower.tower import Tower
from watchtower.wire.verdict import Cause

SHOWN = 5
"""Earlier incidents on the page. The API lists more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackShown:
    """The answer of a person, and the choices of the form."""

    given: FeedbackView | None
    causes: list[str]


async def collect_earlier(tower: Tower, overview: IncidentOverview) -> SimilarList | None:
    """Return earlier incidents with the same node, line or cause; None if there are none."""
    found = await find_similar(tower, overview.incident.id, SHOWN)
    return found if found is not None and (found.items or found.node_counts) else None


async def collect_feedback(tower: Tower, overview: IncidentOverview) -> FeedbackShown:
    """Return what a person answered about the verdict, and the causes to choose from."""
    given = tower.feedback.find(overview.incident.id)
    return FeedbackShown(
        given=view_feedback(given) if given else None,
        causes=[cause.value for cause in Cause if cause is not Cause.UNKNOWN],
    )
