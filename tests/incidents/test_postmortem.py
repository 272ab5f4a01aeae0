"""The document of an incident. `pytest tests/incidents --update-golden` writes its golden texts."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import FETCHING, a_case, a_rank, ranks_in, with_rank
from tests.diagnosis.test_properties import verdict_of
from tests.generated_docs import ROOT, RUNBOOKS, make_runbooks
from tests.properties import examples
from watchtower.drills.catalogue import DRILLS
from watchtower.incidents.incident import (
    NO_FACTS,
    Ack,
    Delivery,
    Identity,
    Incident,
    IncidentKind,
    JobFacts,
)
from watchtower.incidents.postmortem.runbooks import SIMILAR_DRILLS, explain_fix, explain_prevention
from watchtower.incidents.postmortem.writer import (
    DELETED,
    PostmortemFacts,
    WaitPicture,
    write_postmortem,
)
from watchtower.jobs.verdicts import closed_verdict
from watchtower.tower.postmortems import gather_facts
from watchtower.wire.verdict import Aftermath, Alternative, Cause, Status, VerdictEntry
from watchtower.writing.documents import write_html, write_markdown
from watchtower.writing.times import rfc3339

FOLDER = Path(__file__).parent / "postmortems"
OPENED = 1_795_363_392.0
CASE = a_case(
    with_rank(ranks_in(8), a_rank(3, FETCHING, syscall="read", target="/mnt/shards/0042.tar"))
)


def an_incident(**changes) -> Incident:
    verdict = replace(
        verdict_of(CASE),
        incident="01KAPY3V7QH8M2T4W6Z9B1C5D7",
        opened_at=rfc3339(OPENED),
        diagnosed_at=rfc3339(OPENED - 7),
        stalled_for_s=17.0,
    )
    return _incident(verdict, **changes)


def _incident(verdict, **changes) -> Incident:
    entry = VerdictEntry(
        at=rfc3339(OPENED - 7),
        cause=Cause.DATALOADER_STALL,
        confidence=0.93,
        suspects="3",
        summary=verdict.summary,
    )
    job = JobFacts(
        ranks=8,
        scheduler="slurm",
        scheduler_id="48213",
        dumps_in=8,
        dumps_wanted=8,
        checkpoint_step=20,
        step_s=0.8,
    )
    incident = Incident(
        id="01KAPY3V7QH8M2T4W6Z9B1C5D7",
        job=CASE.job,
        generation=1,
        status=Status.HUNG,
        opened_at=OPENED,
        updated_at=OPENED,
        verdict=verdict,
        verdicts=(entry,),
        identity=Identity(user="alice", suspect_at=OPENED - 10),
        facts=job,
    )
    return replace(incident, **changes)


def over(incident: Incident, status: Status, after_s: float, *aftermath: Aftermath) -> Incident:
    at = incident.opened_at + after_s
    verdict = replace(incident.verdict, stalled_for_s=17.0 + after_s, aftermath=aftermath)
    return replace(
        incident, status=status, closed_at=at, verdict=closed_verdict(verdict, status, at)
    )


def killed() -> Incident:
    gone = Aftermath(at=rfc3339(OPENED + 1200), ranks="0-7", text="ended by SIGTERM")
    acked = replace(an_incident(), ack=Ack(at=OPENED + 300, by="bob", note="looking at NFS"))
    return over(acked, Status.ENDED, 1203.0, gone)


def facts_of(incident: Incident, case=CASE, **changes) -> PostmortemFacts:
    link, now = f"https://tower/incidents/{incident.id}", OPENED + 30
    return replace(gather_facts(incident, incident.verdict, case, link, now), **changes)


STORIES = {
    "open": facts_of(an_incident(), as_of=OPENED),
    "killed": facts_of(killed(), alerts=(Delivery(at=OPENED + 1, destination="slack"),)),
    "recovered": facts_of(over(an_incident(), Status.RECOVERED, 90.0)),
    "evidence_deleted": facts_of(killed(), case=None),
    "nothing_known": facts_of(
        replace(killed(), identity=Identity(), facts=NO_FACTS, verdicts=()), case=None
    ),
    "ended": facts_of(
        replace(
            an_incident(),
            status=Status.ENDED,
            closed_at=OPENED,
            identity=Identity(kind=IncidentKind.ENDED),
        )
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_golden_postmortem(name, update_golden):
    path = FOLDER / f"{name}.md"
    text = write_markdown(write_postmortem(STORIES[name]))
    if update_golden:
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def test_the_document_says_if_the_evidence_was_deleted():
    assert DELETED.split("`")[0] in write_markdown(write_postmortem(STORIES["evidence_deleted"]))


def test_of_an_unknown_cause_nobody_waited_for_suspects_and_candidates_are_named_once():
    incident = an_incident()
    other = Alternative(cause=Cause.BEHIND_COLLECTIVE, suspects=(1,), confidence=0.45)
    verdict = replace(
        incident.verdict, cause=Cause.UNKNOWN, suspects=(), waiting="0", alternatives=(other,)
    )
    text = write_markdown(write_postmortem(facts_of(replace(incident, verdict=verdict))))
    assert "* 1 rank waited: 0." in text
    assert "Also possible" not in text


def test_the_waits_are_a_drawing_and_a_sentence():
    waits = WaitPicture(svg="<svg/>", sentence="7 ranks wait for rank 3 in all_reduce.")
    document = write_postmortem(facts_of(an_incident(), waits=waits))
    text = "Seen while it hung: 7 ranks wait for rank 3"
    assert text in write_markdown(document)
    page = write_html(document)
    assert f'<img src="data:image/svg+xml;base64,PHN2Zy8+" alt="{text}' in page
    assert "<svg" not in page


def test_an_acknowledgement_has_its_person_and_note():
    facts = facts_of(replace(an_incident(), ack=Ack(at=OPENED + 5, by="bob", note="NFS")))
    assert "acknowledged by bob: NFS" in write_markdown(write_postmortem(facts))


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_fix_and_a_prevention(cause):
    assert explain_fix(cause, {})
    assert explain_prevention(cause, {})


@pytest.mark.parametrize(
    ("node", "other", "shown"),
    [
        ("gpu-042", "gpu-042", "gpu-042"),
        ("a; reboot", "a; reboot", "'a; reboot'"),
        ("a\x1b[31m", "a\x1b[31m", "NODE"),
        ("gpu-042", "gpu-043", "NODE"),
    ],
)
def test_commands_name_the_node_of_the_suspects_and_the_job(node, other, shown):
    found = an_incident().verdict
    suspects = [
        replace(found.suspects[0], rank=rank, node=n) for rank, n in ((1, node), (2, other))
    ]
    verdict = replace(found, job="it's", cause=Cause.NODE_LOST, suspects=tuple(suspects))
    lost = facts_of(replace(an_incident(), verdict=verdict))
    drain = f"scontrol update NodeName={shown} State=DRAIN Reason=lost"
    assert drain in write_markdown(write_postmortem(lost))
    verdict = replace(verdict, cause=Cause.PROCESS_FROZEN)
    frozen = facts_of(replace(an_incident(), verdict=verdict))
    assert """--job 'it'"'"'s' --for""" in write_markdown(write_postmortem(frozen))


def test_the_packaged_runbooks_are_those_of_the_documents():
    assert (ROOT / RUNBOOKS).read_text("utf-8") == make_runbooks(), "run `make docs`"


def test_every_drill_that_a_postmortem_names_exists_and_has_its_cause():
    causes = {drill.name: drill.expected.cause for drill in DRILLS}
    for cause, name in SIMILAR_DRILLS.items():
        assert causes[name] == cause.value


@examples(60)
@given(st.text(max_size=300))
def test_text_of_a_process_is_never_markup(text):
    hostile = replace(
        an_incident().verdict,
        job=text,
        summary=text,
        next_steps=(text,),
        lasting_steps=(text,),
        missing_evidence=(text,),
        aftermath=(Aftermath(at=rfc3339(OPENED), ranks="3", text=text),),
    )
    facts = facts_of(replace(an_incident(), verdict=hostile), owner=text)
    page = write_html(write_postmortem(replace(facts, link="")))
    plain = page.replace("&lt;", "").replace("&gt;", "")
    tags = {"html", "head", "meta", "title", "body", "h1", "h2", "p", "ul", "li", "table", "tr"}
    tags |= {"th", "td", "pre", "code", "!DOCTYPE"}
    for piece in plain.split("<")[1:]:
        assert piece.removeprefix("/").split(">")[0].split()[0] in tags


def test_a_page_of_markup_stays_text():
    verdict = replace(an_incident().verdict, summary="<script>alert(1)</script> ![x](http://e.com)")
    document = write_postmortem(facts_of(replace(an_incident(), verdict=verdict)))
    assert "<script>" not in write_html(document)
    assert "<script>" not in write_markdown(document).replace("\\<script\\>", "")
    assert "![x]" not in write_markdown(document)
