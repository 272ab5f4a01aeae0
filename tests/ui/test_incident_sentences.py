"""Sentences of the page of an incident that depend on time."""

from dataclasses import replace

from tests.ui.test_parts_of_pages import a_verdict, an_overview, show
from watchtower.alerts.labels import NO_LINKS
from watchtower.incidents.incident import JobFacts
from watchtower.ui.incident_page import show_incident
from watchtower.wire.verdict import Status


def test_the_end_of_the_own_timeout_is_the_time_of_the_incident():
    at = 1.7e9 + 600
    verdict = replace(a_verdict(), collective_timeout_s=600.0)
    overview = an_overview(verdict=verdict)
    incident = replace(overview.incident, facts=JobFacts(timeout_at=at))
    for now, words in ((at - 1, "should end it"), (at, "should have ended it")):
        page = show_incident(replace(overview, incident=incident), NO_LINKS, {}, now)
        assert page.kill.timeout_text.endswith(f"(10 min) {words} at about 22:23 UTC.")
        assert "expires at about 2023-11-14 22:23 UTC." in page.channel[1]


def test_the_sentence_of_the_verdict_is_below_the_headline_with_its_time():
    shown = show(an_overview())
    assert shown.sentence.startswith("Rank 2: waiting for input data.")
    assert shown.detail == "Rank 2 (n1) has been in `read` at data.py:31 for 17 s."
    verdict = replace(a_verdict(), summary="job llama hung for 3 min and recovered.")
    over = show(an_overview(verdict=verdict, closed_at=1.7e9 + 60, status=Status.RECOVERED))
    assert (over.sentence, over.detail) == ("Rank 2 held up the job: waiting for input data.", "")


def test_the_headline_of_an_ended_incident_is_short_and_the_details_are_below_it():
    summary = "job llama hung for 3 min and then ended. Seen while it hung: Rank 2 is in `read`."
    verdict = replace(a_verdict(), summary=summary)
    over = show(an_overview(verdict=verdict, closed_at=1.7e9 + 60, status=Status.ENDED))
    assert over.sentence == "Rank 2 held up the job: waiting for input data."
    assert (over.detail, over.detail_at) == (f"J{summary[1:]}", None)
