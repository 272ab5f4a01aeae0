from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import FETCHING, a_case, a_dead_rank, a_rank, ranks_in, with_rank
from tests.diagnosis.test_properties import verdict_of
from tests.properties import examples
from watchtower.wire.verdict import (
    Aftermath,
    Alternative,
    Cause,
    Domain,
    Doubt,
    Evidence,
    Status,
    Suspect,
    Verdict,
)
from watchtower.writing import slack_blocks
from watchtower.writing.times import read_time
from watchtower.writing.verdict_text import (
    MAX_LINES,
    SHOWN_DOUBTS,
    About,
    escape_markdown,
    escape_slack,
    render_markdown,
    render_slack,
    render_slack_blocks,
    render_text,
)


def a_verdict(**values):
    culprit = a_rank(3, FETCHING, syscall="read", target="/mnt/shards/0042.tar")
    return replace(verdict_of(a_case(with_rank(ranks_in(8), culprit))), **values)


def test_a_terminal_gets_the_whole_answer():
    assert render_text(a_verdict()) == (
        "llama-70b: hung, dataloader_stall (93%)\n"
        "Rank 3 (gpu-00, pid 4003) has been in `read` at data.py:31 for 9 s, blocked in read() on "
        "/mnt/shards/0042.tar. 7 ranks wait for rank 3 in all_reduce.\n"
        "  call: storage\n"
        "  suspect: rank 3, gpu-00, pid 4003, data.py:31 in read\n"
        "  waiting: 0-2,4-7, step: 41, stalled for: 9 s\n"
        "  stacks (0.75): rank 3: read data.py:31 < __next__ data.py:88 < train main.py:38 "
        "< <module> main.py:80 (unchanged in two dumps)\n"
        "  other ranks (0.48): 7 ranks wait in all_reduce\n"
        "  kernel (0.40): rank 3: state S, blocked in read() on /mnt/shards/0042.tar\n"
        "  heartbeat (0.15): rank 3: last step 41, 9 s ago; the waiting ranks are at step 41\n"
        "  next: check /mnt/shards/0042.tar and its mount on gpu-00\n"
        "  next: restart the job from its last checkpoint before step 41\n"
    )


@pytest.mark.parametrize(
    ("seconds", "when"), [(0.0, "at the next check"), (0.4, "at the next check"), (7.2, "in 7 s")]
)
def test_a_suspicion_shows_when_it_becomes_hung(seconds, when):
    text = render_text(a_verdict(hung_in_s=seconds, hung_because="rank 3 does not move"))
    assert f"  hung {when} if nothing changes: rank 3 does not move\n" in text


def test_markdown_keeps_the_evidence_in_a_code_block():
    lines = render_markdown(a_verdict()).splitlines()
    assert lines[0] == "**llama-70b: hung, dataloader_stall (93%)**"
    assert lines.count("```") == 2
    assert lines[3] == "call: storage"
    assert lines[5].startswith("waiting: 0-2,4-7")
    assert lines[6].startswith("stacks (0.75): rank 3: read data.py:31 < __next__")


def test_whom_to_call_is_shown_while_it_is_known_and_useful():
    assert "call:" in render_text(a_verdict(status=Status.ENDED))
    for useless in ({"domain": Domain.UNKNOWN}, {"domain": None}, {"status": Status.RECOVERED}):
        assert "call:" not in render_text(a_verdict(**useless))


def test_slack_escapes_its_three_control_characters_everywhere():
    text = render_slack(a_verdict(job="<!channel> & co"))
    assert text.startswith("*&lt;!channel&gt; &amp; co: hung")
    assert "&lt;module&gt; main.py:80" in text
    assert "<" not in text


def test_a_healthy_job_is_one_line_and_its_facts():
    verdict = Verdict(job="a", generation=1, status=Status.HEALTHY, summary="stepping", step=7)
    assert render_text(verdict) == "a: healthy\nstepping\n  step: 7\n"
    bare = replace(verdict, step=None)
    assert render_markdown(bare) == "**a: healthy**\nstepping\n"


def test_the_cause_of_a_healthy_job_that_was_examined_is_conditional():
    (headline, *_) = render_text(a_verdict(status=Status.HEALTHY)).splitlines()
    assert headline.startswith("llama-70b: healthy; if it hangs: dataloader_stall (")


def test_a_verdict_shows_alternatives_and_what_is_missing():
    verdict = a_verdict(
        alternatives=(
            Alternative(cause=Cause.BUSY_LOOP, suspects=(3, 4), confidence=0.4),
            Alternative(cause=Cause.SYMMETRIC_HANG, suspects=(), confidence=0.2),
        ),
        missing_evidence=("rank 4: no stack", "rank 5: no stack"),
    )
    text = render_text(verdict)
    assert "  also possible: busy_loop of ranks 3-4 (40%), symmetric_hang (20%)\n" in text
    assert "  not known: rank 4: no stack (and 1 more)\n" in text
    assert "not known: rank 4: no stack\n" in render_text(
        replace(verdict, missing_evidence=("rank 4: no stack",))
    )
    unknown = render_text(replace(verdict, cause=Cause.UNKNOWN))
    assert unknown.startswith("llama-70b: hung, cause unknown\n")
    assert "also possible" not in unknown  # the summary names the candidates


def test_each_doubt_has_a_line_and_the_strongest_are_shown():
    doubts = tuple(Doubt(kind="x", text=f"reason {number}") for number in range(4))
    shown = render_text(a_verdict(doubts=doubts))
    assert [line for line in shown.splitlines() if "not certain" in line] == [
        f"  not certain because reason {number}" for number in range(SHOWN_DOUBTS)
    ]
    assert "not certain because reason 0\n" in render_markdown(a_verdict(doubts=doubts))
    over = a_verdict(doubts=doubts, status=Status.RECOVERED)
    assert "not certain" not in render_text(over)


def test_where_lines_are_few_the_weakest_evidence_is_left_out_and_the_next_steps_stay():
    suspects = tuple(
        Suspect(rank=rank, node="n", cause=Cause.PROCESS_DIED, why="") for rank in range(3)
    )
    verdict = a_verdict(
        suspects=suspects,
        doubts=(Doubt(kind="x", text="reason"),) * 2,
        missing_evidence=("x",),
        alternatives=(Alternative(cause=Cause.UNKNOWN, suspects=(1,), confidence=0.1),),
    )
    text, chat = render_text(verdict), render_markdown(verdict)
    assert text.count("\n") == chat.count("\n") == MAX_LINES
    assert text.count("  next: ") == chat.count("Next: ") == 2
    assert "stacks (0.75)" in text
    assert "heartbeat (0.15)" not in text


def test_times_are_in_utc_and_have_an_age_where_the_moment_of_reading_is_known():
    after = Aftermath(at="2026-11-22T05:52:02.184Z", ranks="0-3", text="ended by SIGTERM")
    verdict = a_verdict(aftermath=(after,))
    at = read_time(after.at).timestamp()
    text = "afterwards: 2026-11-22 05:52:02 UTC"
    assert f"  {text} (3 min ago) ranks 0-3: ended by SIGTERM\n" in render_text(verdict, at + 200)
    for shown in (render_text(verdict), render_markdown(verdict), render_slack(verdict)):
        assert f"{text} ranks 0-3: ended by SIGTERM\n" in shown


def test_many_suspects_are_summed_up_and_no_form_grows_past_its_lines():
    suspects = tuple(
        Suspect(rank=rank, node="n", cause=Cause.PROCESS_DIED, why="") for rank in range(64)
    )
    verdict = a_verdict(
        suspects=suspects,
        missing_evidence=("x",),
        alternatives=(Alternative(cause=Cause.UNKNOWN, suspects=(1,), confidence=0.1),),
    )
    assert "suspect: rank 2, n; all suspects: ranks 0-63" in render_text(verdict)
    for render in (render_text, render_markdown, render_slack):
        assert render(verdict).count("\n") <= MAX_LINES
        assert render(verdict).count("```") in (0, 2)


def test_text_from_processes_cannot_break_out_of_any_form():
    nasty = "ValueError: ```\n\x1b[2J<script>*x*|`id`|[a](http://b)\u202e"
    verdict = verdict_of(a_case(with_rank(ranks_in(4), a_dead_rank(1, error=nasty))))
    for render in (render_text, render_markdown, render_slack):
        text = render(verdict)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert text.count("```") in (0, 2)
    assert "<script>" not in render_slack(verdict)
    summary = render_markdown(verdict).splitlines()[1]
    assert r"\<script\>\*x\*\|" in summary
    assert r"\[a\]" in summary


def test_markdown_leaves_names_with_underscores_readable():
    assert escape_markdown("all_reduce of `__next__` and _x_") == (
        r"all_reduce of `__next__` and \_x\_"
    )


def test_slack_shows_marks_as_what_they_are_and_leaves_names_readable():
    assert escape_slack("*b* ~s~ _i_ @here all_reduce of `__next__`") == (
        "\u2217b\u2217 \u223cs\u223c \u02cdi\u02cd \uff20here all_reduce of `__next__`"
    )
    assert escape_slack("<!channel> <https://a|b> `<@U1>`") == (
        "&lt;!channel&gt; &lt;https://a|b&gt; `&lt;@U1&gt;`"
    )


def test_slack_escapes_ampersands_first():
    assert escape_slack("<&>") == "&lt;&amp;&gt;"


def test_unbalanced_backticks_in_a_stored_verdict_do_not_open_a_span():
    assert "it's" in render_markdown(a_verdict(summary="it`s"))


LINK = "https://tower/incidents/01KAPY3V7Q"
ABOUT = About(owner="alice (slurm 48213)", link=LINK)
OPENED = "2026-11-22T16:03:12.000Z"


def an_incident(**values):
    culprit = a_rank(3, FETCHING, syscall="read", target="/mnt/shards/0042.tar")
    verdict = verdict_of(a_case(with_rank(ranks_in(8), culprit)))
    return replace(verdict, incident="01KAPY3V7Q", opened_at=OPENED, **values)


def test_a_text_names_the_incident_its_time_its_owner_and_its_address():
    lines = render_text(an_incident(), 1_795_363_572.0, ABOUT).splitlines()
    assert lines[-2] == (
        "  incident 01KAPY3V7Q, opened 2026-11-22 16:03:12 UTC (3 min ago), "
        "owner: alice (slurm 48213)"
    )
    assert lines[-1] == f"  {LINK}"


def test_chats_have_the_same_lines_and_a_time_that_stays_right():
    known = "incident 01KAPY3V7Q, opened 2026-11-22 16:03:12 UTC, owner: alice (slurm 48213)"
    for render in (render_markdown, render_slack):
        lines = render(an_incident(), ABOUT).splitlines()
        assert lines[-2:] == [known, LINK]


def test_the_incident_stays_where_lines_are_few():
    crowded = an_incident(
        evidence=tuple(Evidence(source="stacks", text=f"fact {n}") for n in range(9)),
        missing_evidence=("a", "b"),
        aftermath=tuple(Aftermath(at=OPENED, ranks="3", text=f"event {n}") for n in range(9)),
    )
    for text in (
        render_text(crowded, 1.0, ABOUT),
        render_markdown(crowded, ABOUT),
        render_slack(crowded, ABOUT),
    ):
        assert len(text.splitlines()) <= MAX_LINES
        assert "01KAPY3V7Q" in text
        assert LINK in text


def test_a_suspicion_has_the_time_of_its_diagnosis_and_no_address():
    verdict = replace(an_incident(diagnosed_at=OPENED), incident=None, opened_at=None)
    last = render_text(verdict, about=ABOUT).splitlines()[-1]
    assert last == "  diagnosed 2026-11-22 16:03:12 UTC, owner: alice (slurm 48213)"


def test_blocks_have_a_headline_a_code_block_the_incident_and_a_link_as_button():
    blocks = render_slack_blocks(an_incident(), ABOUT, {"Details": LINK})["blocks"]
    assert blocks[0]["text"] == {
        "type": "mrkdwn",
        "text": "*llama-70b: hung, dataloader_stall (93%)*",
        "verbatim": True,
    }
    assert blocks[2]["text"]["text"].startswith("```\ncall: storage\nsuspect: rank 3")
    assert blocks[2]["text"]["text"].endswith("\n```")
    assert "01KAPY3V7Q" in blocks[-2]["elements"][0]["text"]
    (button,) = blocks[-1]["elements"]
    assert button == {
        "type": "button",
        "text": {"type": "plain_text", "text": "Details", "emoji": False},
        "url": LINK,
    }


@examples(100)
@given(st.text(max_size=4000), st.integers(0, 40))
def test_no_text_of_a_process_breaks_slacks_limits_or_becomes_markup(text, count):
    verdict = an_incident(
        job=text,
        summary=text,
        evidence=tuple(Evidence(source=text, text=text) for _ in range(count)),
        next_steps=(text,),
        missing_evidence=(text,),
    )
    message = render_slack_blocks(verdict, About(owner=text, link=LINK), {"Details": LINK})
    assert len(message["blocks"]) <= slack_blocks.MAX_BLOCKS
    for block in message["blocks"]:
        for shown in [block.get("text"), *block.get("elements", ())]:
            if shown and "url" not in shown:
                assert 0 < len(shown["text"]) <= slack_blocks.MAX_TEXT
                assert "<" not in shown["text"]
                assert ">" not in shown["text"]
                assert "&" not in shown["text"].replace("&amp;", "").replace("&lt;", "").replace(
                    "&gt;", ""
                )


def test_a_long_text_is_cut_and_not_inside_an_escape():
    for length in range(2990, 3010):
        shown = slack_blocks.section("a" * length + "<<<<")["text"]["text"]
        assert len(shown) <= slack_blocks.MAX_TEXT
        assert "&" not in shown.replace("&lt;", "")
