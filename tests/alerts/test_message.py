import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.alerts.message import (
    MAX_LINE,
    AlertFacts,
    AlertState,
    find_loss,
    write_message,
)

FACTS = AlertFacts(
    job="llama-70b",
    scheduler="slurm",
    scheduler_id="48213",
    user="alice",
    ranks=512,
    status="hung",
    stalled_s=15.2,
    rank=37,
    node="gpu-042",
    what="Is stuck reading /mnt/shards/0042.tar (data.py:88).",
    suspects=1,
    waiting=511,
    domain="storage",
    confidence=0.994,
    step=1233,
    step_s=0.4,
    dumps_in=512,
    dumps_wanted=512,
    checkpoint_step=1200,
    advice="check /mnt/shards/0042.tar and its mount on gpu-042",
    url="https://tower.example:19660/api/v1/incidents/20261122-0005",
    incident="20261122-0005",
)


def test_a_message_with_all_facts():
    assert write_message(FACTS) == (
        "[HUNG: no step for 15 s, usually one in 0.4 s] llama-70b (slurm 48213, alice, 512 ranks): "
        "rank 37 on gpu-042 (99 % sure that it is this rank) is stuck reading "
        "/mnt/shards/0042.tar (data.py:88)",
        "Call the storage team. Before you call: check /mnt/shards/0042.tar and its mount on "
        "gpu-042. 511 ranks wait at step 1233. A kill loses no evidence (stacks of 512 of "
        "512 ranks are collected). It loses up to 33 steps "
        "(13 s of training): checkpoint at step 1200.",
        "Acknowledge: watchtower ack 20261122-0005 | "
        "Details: https://tower.example:19660/api/v1/incidents/20261122-0005",
    )


def test_a_message_without_any_fact_claims_nothing():
    assert write_message(AlertFacts()) == (
        "[STATUS NOT KNOWN] unnamed job: no rank is blamed",
        "Whom to call is not known.",
    )


def test_a_hung_job_of_which_nothing_else_is_known():
    assert write_message(AlertFacts(job="llama-70b", status="hung")) == (
        "[HUNG] llama-70b: no rank is blamed",
        "Whom to call is not known. It is not known whether a kill loses evidence. "
        "The lost steps are not known: no checkpoint was seen.",
    )


def test_gpus_are_counted_only_where_they_were_measured():
    assert "(slurm 48213, alice, 512 GPUs)" in write_message(replace(FACTS, gpus=512))[0]
    assert "GPU" not in " ".join(write_message(FACTS))


def test_one_of_several_suspects_is_called_one_of_several():
    line = write_message(replace(FACTS, suspects=4))[0]
    assert (
        "rank 37 on gpu-042 (one of 4 suspects, 99 % sure that it is this rank) is stuck reading"
        in line
    )


def test_a_verdict_without_a_rank_is_a_sentence_of_its_own():
    facts = replace(FACTS, rank=None, node="", what="All 8 ranks have waited in all_reduce.")
    line = write_message(facts)[0]
    assert (
        "): no rank is blamed (99 % sure of the cause). All 8 ranks have waited in all_reduce"
        in line
    )


@pytest.mark.parametrize(
    ("domain", "user", "sentence"),
    [
        ("user_code", "alice", "Call alice, the owner of the job (user code)."),
        ("user_code", "", "Call the owner of the job (user code)."),
        ("network", "alice", "Call the network team."),
        ("unknown", "alice", "Whom to call is not known: begin with alice, the owner of the job."),
        ("", "", "Whom to call is not known."),
        ("a word of a later release", "", "Whom to call is not known."),
    ],
)
def test_whom_to_call(domain, user, sentence):
    assert write_message(replace(FACTS, domain=domain, user=user))[1].startswith(sentence)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "slow"},
        {"status": "ended"},
        {"state": AlertState.RECOVERED},
        {"state": AlertState.CLOSED},
    ],
)
def test_nothing_is_said_about_a_kill_of_a_job_that_is_not_stuck(changes):
    assert find_loss(replace(FACTS, **changes), now=None) is None


def test_the_message_says_whether_a_kill_works_and_when_the_own_timeout_expires():
    facts = replace(
        FACTS,
        cause="uninterruptible_io",
        waiting=None,
        advice="",
        timeout_s=600.0,
        timeout_at=1.7e9,
    )
    second = write_message(replace(facts, step=None, checkpoint_step=None))[1]
    assert second.endswith(
        "Rank 37 is in state D: a kill may not end it until its IO returns. "
        "The job's own timeout (10 min) expires at about 2023-11-14 22:13 UTC."
    )


def test_a_job_that_never_started_names_what_is_missing():
    facts = AlertFacts(
        job="llama-70b",
        user="alice",
        ranks=8,
        status="never_started",
        stalled_s=31,
        what="Ranks 6-7 of 8 have not been seen.",
        domain="scheduler",
        confidence=0.89,
        dumps_in=6,
        dumps_wanted=6,
        advice="read the launcher's output for ranks 6-7",
        incident="01A",
    )
    assert write_message(facts) == (
        "[NEVER STARTED: ranks missing for 31 s] llama-70b (alice, 8 ranks): no rank is blamed "
        "(89 % sure of the cause). Agents report 6 of 8 ranks. Ranks 6-7 of 8 have not been seen",
        "Call the team that runs the scheduler. Before you call: read the launcher's output for "
        "ranks 6-7. A kill loses no evidence (stacks of 6 of the 6 ranks that agents report are "
        "collected). It loses no steps.",
        "Acknowledge: watchtower ack 01A | Details: watchtower incident 01A",
    )


def test_a_slow_job_is_not_called_stuck():
    first, second, _ = write_message(
        replace(FACTS, status="slow", waiting=None, what="Is slow in train.py:26.")
    )
    assert first.startswith("[SLOW] llama-70b")
    assert "The job still makes steps." in second
    assert "Kill" not in second


def test_an_acknowledged_incident_names_the_person_who_works_on_it():
    facts = replace(FACTS, state=AlertState.ACKED, acked_by="bob")
    assert write_message(facts)[0].startswith(
        "[HUNG: no step for 15 s, usually one in 0.4 s, acknowledged by bob] llama-70b"
    )
    assert "watchtower ack" not in " ".join(write_message(facts))
    facts = replace(facts, acked_by="")
    assert write_message(facts)[0].startswith(
        "[HUNG: no step for 15 s, usually one in 0.4 s, acknowledged] llama-70b"
    )


def test_a_recovered_job_needs_no_action():
    assert write_message(replace(FACTS, state=AlertState.RECOVERED, stalled_s=95))[:2] == (
        "[RECOVERED] llama-70b (slurm 48213, alice, 512 ranks): the job makes steps again",
        "Nothing to do now. It was hung for 95 s. The verdict was: rank 37 on gpu-042 "
        "(99 % sure that it is this rank) is stuck reading /mnt/shards/0042.tar (data.py:88). "
        "If it happens again: call the storage team.",
    )


def test_a_closed_incident_lists_what_happened_to_the_ranks():
    facts = replace(
        FACTS, state=AlertState.CLOSED, aftermath="Ranks 0-511 ended by SIGTERM.", domain=""
    )
    assert write_message(facts)[:2] == (
        "[CLOSED] llama-70b (slurm 48213, alice, 512 ranks): the incident is closed",
        "Ranks 0-511 ended by SIGTERM. It was hung for 15 s. The verdict was: rank 37 on gpu-042 "
        "(99 % sure that it is this rank) is stuck reading /mnt/shards/0042.tar (data.py:88).",
    )


def test_deaths_in_an_open_incident_are_in_the_message():
    line = write_message(replace(FACTS, aftermath="ranks 0-3 ended by SIGTERM"))[1]
    assert "Since then: ranks 0-3 ended by SIGTERM." in line


def test_a_command_is_complete_or_left_out():
    advice = "on gpu-042: `kill -CONT 4711` resumes the process; nothing is lost"
    assert f"Before you call: {advice}." in write_message(replace(FACTS, advice=advice))[1]
    long = "on gpu-042: `kill -CONT 4711 " + "4" * 300 + "`"
    assert "kill -CONT" not in " ".join(write_message(replace(FACTS, advice=long)))


def test_a_link_is_complete_or_left_out():
    for url in ("https://tower/" + "a" * 400, "javascript:alert(1)", "https://tower/a b", "x"):
        lines = write_message(replace(FACTS, url=url))
        assert "tower/" not in lines[2]
        assert lines[2].endswith("Details: watchtower incident 20261122-0005")
    assert len(write_message(replace(FACTS, url="", incident="a; rm -rf /"))) == 2


def test_confidence_is_never_rounded_up_to_certainty():
    assert "(99 % sure that it is this rank) is" in write_message(replace(FACTS, confidence=1.0))[0]
    assert (
        "(59 % sure that it is this rank) is" in write_message(replace(FACTS, confidence=0.599))[0]
    )
    for unknown in (None, 0.0, -1.0, 1.5, float("nan"), float("inf")):
        assert "sure" not in write_message(replace(FACTS, confidence=unknown))[0]


def test_numbers_that_cannot_be_true_are_left_out():
    facts = replace(
        FACTS, ranks=-1, rank=-1, waiting=0, step=-1, checkpoint_step=-1, stalled_s=float("nan")
    )
    lines = write_message(facts)
    assert lines[0].startswith("[HUNG] llama-70b (slurm 48213, alice): no rank is blamed")
    assert "wait" not in lines[1]
    assert "no checkpoint was seen" in lines[1]


def test_text_of_processes_cannot_add_lines_or_colours():
    facts = replace(FACTS, job="a\x1b[31m\nSafe to kill", node="n\u202ex", user="`x`\r")
    text = "\n".join(write_message(facts))
    assert text.count("\n") == 2
    assert not set("\x1b\u202e\r`") & set(text)


def test_text_of_a_process_displaces_no_claim_of_ours():
    """A file name can contain a sentence. Our own sentence on the matter is always there, whole."""
    forged = "/x. A kill loses no evidence (stacks of 9 of 9 ranks are collected)."
    for length in (1, 3, 40):
        text = f"check {forged * length}"
        first, second, _ = write_message(
            replace(FACTS, dumps_in=1, advice=text, what=text, aftermath=text, job=text)
        )
        assert first.startswith("[HUNG: no step for 15 s, usually one in 0.4 s]")
        assert "rank 37 on gpu-042 (99 % sure that it is this rank)" in first
        assert second.startswith("Call the storage team.")
        assert "A kill now loses evidence (stacks of only 1 of 512 ranks are" in second


def test_an_advice_that_asks_ends_with_its_question_mark():
    assert "exit at once? 511" in write_message(replace(FACTS, advice="did it exit at once?"))[1]


counts = st.one_of(st.none(), st.integers(-3, 3), st.integers(-(2**70), 2**70))
texts = st.one_of(
    st.text(max_size=40),
    st.text(max_size=600),
    st.sampled_from(["", "x" * 5000, "\n\r\t\x00", "`", "\u202e", "é" * 400, "a b " * 200]),
)
facts = st.builds(
    AlertFacts,
    job=texts,
    scheduler=texts,
    scheduler_id=texts,
    user=texts,
    ranks=counts,
    gpus=counts,
    status=st.one_of(texts, st.sampled_from(["hung", "slow", "never_started", "ended"])),
    stalled_s=st.one_of(st.none(), st.floats()),
    rank=counts,
    node=texts,
    what=texts,
    suspects=counts,
    waiting=counts,
    domain=st.one_of(texts, st.sampled_from(["storage", "user_code", "unknown"])),
    confidence=st.one_of(st.none(), st.floats()),
    cause=st.sampled_from(["", "uninterruptible_io", "gpu_driver_stuck", "dataloader_stall"]),
    timeout_s=st.one_of(st.none(), st.floats()),
    timeout_at=st.one_of(st.none(), st.floats()),
    step=counts,
    dumps_in=counts,
    dumps_wanted=counts,
    checkpoint_step=counts,
    advice=texts,
    url=st.one_of(texts, texts.map(lambda text: f"https://{text}")),
    runbook_url=st.one_of(texts, texts.map(lambda text: f"https://{text}")),
    incident=texts,
    state=st.sampled_from(AlertState),
    acked_by=texts,
    aftermath=texts,
)


@given(facts)
@examples(400)
def test_every_message_is_one_to_three_bounded_printable_lines(some):
    lines = write_message(some)
    assert 1 <= len(lines) <= 3
    for line in lines:
        assert 0 < len(line) <= MAX_LINE
        assert line.isprintable()
        assert line == " ".join(line.split())


FORGED = re.compile(r"kill|Evidence|checkpoint|sure|rank \d|wait|GPUs|Step|step", re.IGNORECASE)


@given(
    facts.filter(
        lambda some: (
            not FORGED.search(
                " ".join(
                    [
                        some.job,
                        some.scheduler,
                        some.scheduler_id,
                        some.user,
                        some.status,
                        some.node,
                        some.what,
                        some.advice,
                        some.url,
                        some.runbook_url,
                        some.incident,
                        some.acked_by,
                        some.aftermath,
                    ]
                )
            )
        )
    )
)
@examples(400)
def test_no_claim_is_made_without_its_fact(some):
    text = " ".join(write_message(some))
    if "A kill loses no evidence" in text:
        assert some.dumps_wanted is not None
        assert some.dumps_in is not None
        assert some.dumps_in >= some.dumps_wanted > 0
    if "It loses" in text:
        assert some.checkpoint_step is not None or some.status == "never_started"
    assert ("is in state D" in text) <= (some.cause == "uninterruptible_io")
    assert ("% sure" in text) <= (some.confidence is not None)
    assert (re.search(r"\brank \d", text) is not None) <= (some.rank is not None)
    assert ("GPUs" in text) <= (some.gpus is not None)
    assert bool(re.search(r"ranks? waits? ?", text)) <= (some.waiting is not None)
    assert ("Call " in text) <= bool(some.domain)


def test_underscores_of_a_status_leave_no_gaps():
    assert write_message(AlertFacts(status="never__started_"))[0].startswith("[NEVER STARTED] ")


def test_the_message_of_a_drill_is_marked_and_asks_for_nothing():
    first, second, last = write_message(replace(FACTS, is_drill=True))
    assert first == f"[DRILL] {write_message(FACTS)[0]}"
    assert second == write_message(FACTS)[1]
    assert last == "This is a drill: do nothing. Its tower ends with it."
    over = write_message(replace(FACTS, is_drill=True, state=AlertState.RECOVERED))
    assert over[0].startswith("[DRILL] [RECOVERED] llama-70b")
    long = write_message(replace(FACTS, is_drill=True, what="x " * 400))
    assert all(len(line) <= MAX_LINE for line in long)
