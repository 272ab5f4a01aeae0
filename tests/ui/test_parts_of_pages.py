"""The pure parts of the pages: what they show of given values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.exceptions import HTTPException

from tests.ui.browsing import Page
from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.api.visitors import Way
from watchtower.commands.texts import rank_urgency
from watchtower.incidents.incident import Ack, Identity, Incident, IncidentKind, JobFacts
from watchtower.tower.health import Health
from watchtower.ui.incident_page import MAX_LINES, show_incident
from watchtower.ui.job_page import FEW_NODES, MAX_NODES, show_job
from watchtower.ui.lists import MAX_JOBS, check_choice, show_fleet, show_nodes, sort_jobs
from watchtower.ui.pages import Reader
from watchtower.ui.templates import make_environment, mark_sentence, mark_step
from watchtower.ui.words import format_step_time, stamp
from watchtower.views.fleet import FleetJob
from watchtower.views.incident import IncidentOverview
from watchtower.views.job import JobOverview, NodeOfJob
from watchtower.views.node import ALL_WATCHED, NodeOverview
from watchtower.wire.verdict import (
    WORST_FIRST,
    Aftermath,
    Alternative,
    Cause,
    Domain,
    Doubt,
    Evidence,
    NotJudged,
    Progress,
    Status,
    Suspect,
    Verdict,
    VerdictEntry,
)
from watchtower.writing.text import format_percent

HEALTH = Health(
    ready=True,
    detail="able to decide",
    store="works",
    agents=1,
    agents_silent=0,
    limits=[],
    notes=[],
)


def a_verdict(**changes) -> Verdict:
    values = dict(
        job="llama",
        generation=1,
        status=Status.HUNG,
        summary="Rank 2 (n1) has been in `read` at data.py:31 for 17 s.",
        cause=Cause.DATALOADER_STALL,
        domain=Domain.DATA,
        confidence=0.9,
        suspects=(Suspect(rank=2, node="n1", cause=Cause.DATALOADER_STALL, why="Reads."),),
    )
    return Verdict(**(values | changes))


def an_overview(**changes) -> IncidentOverview:
    verdict = changes.pop("verdict", a_verdict())
    incident = Incident(
        id="01A",
        job="llama",
        generation=1,
        status=changes.pop("status", Status.HUNG),
        opened_at=1.7e9 + 20,
        updated_at=1.7e9 + 30,
        closed_at=changes.pop("closed_at", None),
        verdict=verdict,
        identity=Identity(kind=changes.pop("kind", IncidentKind.HUNG)),
        verdicts=changes.pop("verdicts", ()),
        ack=changes.pop("ack", None),
        facts=changes.pop("facts", JobFacts(ranks=8, dumps_in=8, dumps_wanted=8)),
    )
    values = dict(incident=incident, stalled_at=1.7e9, silence=None)
    return IncidentOverview(**(values | changes))


def show(overview: IncidentOverview):
    return show_incident(overview, NO_LINKS, {}, now=1.7e9 + 60)


def render(template: str, **values) -> str:
    environment = make_environment()
    environment.globals |= {"static": str, "version": "0"}
    reader = Reader(way=Way.NONE, may_read=True, may_change=True)
    person = {"reader": reader, "form_token": "token", "person": "", "here": "", "etag": ""}
    return environment.get_template(template).render(root="./", **person, **values)


def a_job(name: str, status: Status, **changes) -> FleetJob:
    values = dict(
        job=name,
        sharer="uid:1",
        is_drill=False,
        labels={},
        attempt=1,
        status=status,
        sentence="",
        since=None,
        world_size=8,
        typical_step_s=1.0,
        has_steps=True,
        incident=None,
        acked_by=None,
        is_silenced=False,
        not_judged=None,
    )
    return FleetJob(**(values | changes))


# The page of an incident


@pytest.mark.parametrize(
    ("facts", "loses"),
    [
        (JobFacts(ranks=8, dumps_in=8, dumps_wanted=8), False),
        (JobFacts(ranks=8, dumps_in=7, dumps_wanted=8), True),
        (JobFacts(ranks=8), None),
    ],
)
def test_whether_a_kill_loses_evidence(facts, loses):
    shown = show(an_overview(facts=facts))
    assert shown.kill is not None
    assert shown.kill.loses_evidence is loses


def test_an_incident_that_is_over_has_no_commands_and_is_not_asked_to_be_killed():
    facts = JobFacts(scheduler="slurm", scheduler_id="48213", ranks=8)
    assert show(an_overview(facts=facts)).commands
    shown = show(an_overview(facts=facts, closed_at=1.7e9 + 60, status=Status.RECOVERED))
    assert (shown.commands, shown.kill, shown.headline, shown.tone) == (
        [],
        None,
        "Recovered",
        "good",
    )
    assert shown.call.startswith("If it happens again")


@pytest.mark.parametrize(
    ("changes", "headline", "tone"),
    [
        ({}, "Hung", "bad"),
        ({"ack": Ack(at=1.7e9 + 40, by="bob")}, "Hung", "warn"),
        ({"kind": IncidentKind.NEVER_STARTED}, "Never started", "bad"),
        ({"closed_at": 1.7e9 + 60, "status": Status.ENDED}, "Hung, then ended", "over"),
        ({"closed_at": 1.7e9, "kind": IncidentKind.ENDED, "stalled_at": None}, "Job died", "over"),
    ],
)
def test_the_headline_of_an_incident(changes, headline, tone):
    shown = show(an_overview(**changes))
    assert (shown.headline, shown.tone) == (headline, tone)
    Page(render("incident.html", page=shown, parts=[]))


def test_the_timeline_is_in_the_order_of_time():
    entry = VerdictEntry(
        at="2023-11-14T22:13:27Z", cause=Cause.UNKNOWN, confidence=0.0, suspects="", summary="x"
    )
    aftermath = (Aftermath(at="2023-11-14T22:20:00Z", ranks="0-7", text="ended by SIGTERM"),)
    shown = show(
        an_overview(
            verdict=a_verdict(aftermath=aftermath, step=9),
            verdicts=(entry,),
            ack=Ack(at=1.7e9 + 40, by="bob", note="checking NFS"),
            closed_at=1.7e9 + 500,
            status=Status.ENDED,
        )
    )
    assert [each.kind for each in shown.events] == [
        "step",
        "verdict",
        "opened",
        "ack",
        "after",
        "closed",
    ]
    assert shown.events[3].text == "Acknowledged by bob: checking NFS"
    assert shown.events[4].text == "Ranks 0-7 ended by SIGTERM"


def test_a_verdict_without_a_rank_and_of_an_unknown_cause_has_a_page():
    verdict = a_verdict(
        cause=Cause.UNKNOWN,
        suspects=(),
        alternatives=(Alternative(cause=Cause.GIL_HELD, suspects=(1, 2), confidence=0.4),),
        doubts=(Doubt(kind="presumed", text="no stack of rank 2 is known"),),
    )
    shown = show(an_overview(verdict=verdict))
    assert shown.confidence is None
    assert shown.alternatives == [
        "native code holds the Python interpreter lock (GIL) (ranks 1-2, 40 %)"
    ]
    text = Page(render("incident.html", page=shown, parts=[])).text
    assert "No rank is blamed." in text
    assert "Not certain because no stack of rank 2 is known" in text


def test_the_page_of_16384_ranks_is_small():
    suspects = tuple(
        Suspect(rank=rank, node=f"n{rank}", cause=Cause.STRAGGLER, why="Reads." * 9)
        for rank in range(0, 16_384, 2)
    )
    verdict = a_verdict(
        suspects=suspects,
        waiting=",".join(map(str, range(1, 16_384, 2))),
        evidence=tuple(Evidence(source="stacks", text="x" * 500, weight=0.5) for _ in range(999)),
        missing_evidence=("py-spy is not installed " * 20,) * 2048,
    )
    shown = show(an_overview(verdict=verdict))
    assert shown.waiting == 8192
    assert shown.more_not_known == 2048 - MAX_LINES
    assert len(render("incident.html", page=shown, parts=[])) < 60_000


# Fleet, jobs and nodes

STARTING = NotJudged(text="starting, not judged yet", missing=("no steps",), until=None)


def test_the_worst_jobs_are_first():
    jobs = [
        a_job("healthy", Status.HEALTHY),
        a_job("acked", Status.HUNG, acked_by="bob", incident="01A"),
        a_job("small", Status.HUNG, world_size=4),
        a_job("slow", Status.SLOW),
        a_job("large", Status.HUNG, world_size=512),
        a_job("drill:x", Status.HUNG, is_drill=True),
        a_job("ended", Status.ENDED),
    ]
    shown = show_fleet(jobs, [], HEALTH)
    assert [each.job for each in shown.jobs] == [
        "large",
        "small",
        "acked",
        "slow",
        "healthy",
        "ended",
    ]
    assert (shown.hung, shown.hung_ranks) == (3, 524)
    assert [each.job for each in shown.drills] == ["drill:x"]
    counts = [("hung", 3, "bad"), ("slow", 1, "warn"), ("healthy", 1, "good"), ("ended", 1, "over")]
    assert shown.counts == counts
    new = a_job("new", Status.HEALTHY, not_judged=STARTING)
    shown = show_fleet([*jobs, new], [], HEALTH)
    assert [each.job for each in shown.jobs][3:] == ["slow", "new", "healthy", "ended"]
    assert shown.counts == [*counts[:2], ("not judged yet", 1, "over"), *counts[2:]]


def test_a_fleet_of_thousands_of_jobs_is_a_small_page():
    jobs = [a_job(f"job-{n}", Status.HUNG, sentence="x" * 900) for n in range(4096)]
    shown = show_fleet(jobs, [], HEALTH)
    assert (len(shown.jobs), shown.hidden) == (MAX_JOBS, 4096 - MAX_JOBS)
    assert len(render("fleet.html", page=shown)) < 200_000


def test_many_hung_jobs_of_one_owner_do_not_hide_the_job_of_another():
    jobs = [a_job(f"job-{n}", Status.HUNG, world_size=512) for n in range(4096)]
    shown = show_fleet([*jobs, a_job("mine", Status.SLOW, sharer="uid:2")], [], HEALTH)
    assert "mine" in [each.job for each in shown.jobs]


def a_node_of_job(number: int, **changes) -> NodeOfJob:
    values = dict(
        node=f"n{number}",
        ranks=8,
        ended=0,
        first_rank=8 * number,
        last_rank=8 * number + 7,
        lowest_step=9,
        highest_step=9,
        silent_since=None,
        limits=[],
    )
    return NodeOfJob(**(values | changes))


def a_job_overview(**changes) -> JobOverview:
    values = dict(
        summary=a_job("llama", Status.SLOW, typical_step_s=1.0),
        facts=JobFacts(ranks=16, nodes=2),
        began_at=1.7e9,
        verdict=a_verdict(status=Status.SLOW, evidence=(Evidence(source="peers", text="x"),)),
        progress=Progress.STEPPING,
        step=9,
        slowdown=2.1,
        phases={"": 15, "checkpoint": 1},
        ended=0,
        missing=1,
        unwatched=ALL_WATCHED,
        evidence={"process": 1.0, "heartbeat": 0.5, "stacks": 1.0},
        waits={2: 0.05, 7: 0.6},
        trained_share=0.995,
        nodes=[a_node_of_job(0), a_node_of_job(1, silent_since=1.7e9)],
        silence=None,
        hung_at=None,
        hung_because="",
    )
    return JobOverview(**(values | changes))


def test_a_slow_job_shows_which_ranks_wait_least():
    shown = show_job(a_job_overview(), [])
    assert shown.waits == [(2, 5), (7, 60)]
    assert shown.pace == "1 s a step usually, now 2.1 times as long"
    assert shown.evidence_health == [("Reported", 100), ("Heartbeats", 50)]
    assert shown.trained == "99 %"
    assert shown.size == ["8 ranks", "2 nodes", "1 rank is not reported"]
    assert shown.phases == ["checkpoint: 1 rank"]
    assert [each.rank for each in shown.suspects] == [2]
    text = Page(render("job.html", page=shown, parts=[])).text
    assert "Which ranks wait least" in text


def test_nodes_of_suspects_and_with_trouble_are_first_on_the_page_of_their_job():
    nodes = [a_node_of_job(number) for number in range(2048)]
    nodes[77] = a_node_of_job(77, ended=2, limits=["py-spy is not installed"])
    shown = show_job(a_job_overview(nodes=nodes), [])
    assert [(row.node, row.trouble) for row in shown.nodes] == [
        ("n1", ["suspect: rank 2"]),
        ("n77", ["2 ranks ended", "py-spy is not installed"]),
    ]
    assert shown.alike == ["2046 nodes without trouble, n0 to n999: step 9"]


def test_the_page_of_a_job_counts_what_it_does_not_list():
    steps = {number: number // 200 for number in range(1000)}
    nodes = [
        a_node_of_job(number, lowest_step=step, highest_step=step) for number, step in steps.items()
    ]
    sick = [a_node_of_job(1000 + number, limits=["no py-spy"]) for number in range(MAX_NODES + 3)]
    shown = show_job(a_job_overview(nodes=[*nodes, *sick]), [])
    assert (len(shown.nodes), shown.hidden_nodes) == (MAX_NODES, 4)  # one more has a suspect
    assert shown.alike[-1] == "199 more without trouble, at other steps"
    few = show_job(a_job_overview(nodes=nodes[:FEW_NODES]), [])
    assert (len(few.nodes), few.alike) == (FEW_NODES, [])


def test_silent_nodes_are_first():
    def a_node(name: str, silent_since=None, incidents=0, named=0) -> NodeOverview:
        return NodeOverview(
            node=name,
            has_agent=True,
            release="0.1.0",
            silent_since=silent_since,
            rank_count=8,
            job_names=["llama"],
            hung_jobs=frozenset(["llama"] if name == "a" else []),
            limits=[],
            incident_count=incidents,
            named_count=named,
        )

    nodes = [a_node("a"), a_node("u", named=5), a_node("b", incidents=3, named=4)]
    shown = show_nodes([*nodes, a_node("c", silent_since=1.7e9)])
    assert [each.node for each in shown.nodes] == ["c", "b", "u", "a"]
    assert (shown.reporting, shown.silent) == (3, 1)
    page = Page(render("nodes.html", page=shown))
    assert "3 agents report, 1 is silent." in page.text
    assert page.text.count("in an incident") == 1
    words = page.text.split()
    assert " ".join(words[words.index("u") :]).startswith("u reports 0.1.0 5 none llama")


# Words


def test_code_spans_of_our_sentences_become_code():
    assert mark_sentence("in `read` <b>") == "in <code>read</code> &lt;b&gt;"
    assert mark_sentence("a ` b") == "a &#39; b"
    assert "<button" in mark_step("run `py-spy dump --pid 1` there")
    assert "<button" not in mark_step("see `read`")
    assert "<code>" not in mark_sentence("x" * 30 + " `abc`", 33)


def test_numbers_in_words():
    assert format_percent(0.999) == "99 %"
    assert format_step_time(0) == ""
    assert format_step_time(1.234) == "1.2 s a step"
    assert format_step_time(123.4) == "123 s a step"
    assert stamp(1.7e9 + 0.9) == "2023-11-14T22:13:20Z"
    assert stamp(None) is None


def test_the_cause_links_to_its_runbook_where_runbooks_are_published():
    links = AlertLinks(runbooks_url="https://runbooks.example")
    shown = show_incident(an_overview(), links, {}, now=1.7e9 + 60)
    cause = a_verdict().cause
    assert shown.runbook == f"https://runbooks.example/causes/{cause.value}.md"
    assert show(an_overview()).runbook == ""


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


def test_the_jobs_on_the_page_of_the_fleet_are_chosen_and_sorted_by_its_address():
    unjudged = NotJudged(text="starting, not judged yet", missing=(), until=None)
    alice = {"user": "alice", "partition": "train", "scheduler_id": "48213"}
    rows = [
        a_job("llama", Status.HUNG, labels=alice, since=1.7e9, world_size=8),
        a_job("Bert", Status.HUNG, labels={"user": "bob"}, since=1.6e9, world_size=64),
        a_job("vit", Status.HEALTHY, labels=alice, world_size=16),
        a_job("new", Status.HEALTHY, not_judged=unjudged),
    ]

    def found(**chosen: str) -> list[str]:
        check_choice(chosen)
        page = show_fleet(rows, [], HEALTH, chosen=chosen)
        assert sum(number for _, number, _ in page.counts) == len(rows)
        return [each.job for each in page.jobs]

    assert found() == ["Bert", "llama", "new", "vit"]
    assert found(state="hung", user="alice") == ["llama"]
    assert found(state="healthy") == ["vit"]
    assert found(state="not judged yet") == ["new"]
    assert (found(job="BERT"), found(job="4821"), found(partition="x")) == (
        ["Bert"],
        ["llama", "vit"],
        [],
    )
    assert found(sort="since") == ["Bert", "llama", "new", "vit"]
    assert found(sort="ranks") == ["Bert", "vit", "llama", "new"]
    assert found(sort="name") == ["Bert", "llama", "new", "vit"]
    for wrong in ({"state": "lost"}, {"sort": "size"}):
        with pytest.raises(HTTPException, match="is one of"):
            found(**wrong)


def test_pages_and_commands_list_jobs_in_the_same_order():
    unjudged = NotJudged(text="not judged yet", missing=(), until=None)
    rows = [a_job(status.value, status) for status in Status]
    rows.append(a_job("not judged", Status.HEALTHY, not_judged=unjudged))
    listed = [each.job for each in sort_jobs(rows)]
    answers = [
        {"job": each.job, "status": each.status.value, "not_judged": each.not_judged}
        for each in rows
    ]
    assert [each["job"] for each in sorted(answers, key=rank_urgency)] == listed
    assert listed == [
        *(status.value for status in WORST_FIRST[:6]),
        "not judged",
        *(status.value for status in WORST_FIRST[6:]),
    ]
    assert rank_urgency({"status": "of a later release"}) > rank_urgency({"status": "ended"})
