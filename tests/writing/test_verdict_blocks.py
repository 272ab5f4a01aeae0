from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import FETCHING, a_case, a_rank, ranks_in, with_rank
from tests.diagnosis.test_properties import verdict_of
from tests.properties import examples
from watchtower.wire.verdict import Aftermath, Evidence
from watchtower.writing import slack_blocks
from watchtower.writing.verdict_text import (
    MAX_LINES,
    About,
    render_markdown,
    render_slack,
    render_slack_blocks,
    render_text,
)

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
