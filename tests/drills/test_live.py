"""The live picture: drawn on a fake terminal, from whatever the tower serves."""

import io

import pytest
from rich.console import Console

from watchtower.drills.command import choose_display
from watchtower.drills.live import LiveDisplay, draw_observed, draw_verdict
from watchtower.drills.plain import PlainDisplay
from watchtower.drills.watch import Observed

RANKS = [
    {"rank": rank, "node": "drill-a", "pid": 100 + rank, "step": 14, "age_s": 7.0, "phase": ""}
    for rank in range(20)
]


def drawn(renderable):
    console = Console(file=io.StringIO(), width=100, markup=False, emoji=False, record=True)
    console.print(renderable)
    return console.export_text()


def an_observed_job(**more):
    return Observed(job="drill-1", started_at=0.0, **more)


def test_nothing_is_known_at_the_start():
    assert "starting" in drawn(draw_observed(an_observed_job(), []))


def test_the_suspect_is_marked_and_shown_among_many():
    verdict = {"suspects": [{"rank": 19}]}
    text = drawn(draw_observed(an_observed_job(view={"rank_states": RANKS}, verdict=verdict), []))
    [marked] = [line for line in text.splitlines() if "suspect" in line]
    assert marked.split()[0] == "19"
    assert "and 4 more" in text


def test_markup_in_a_job_is_shown_as_it_is():
    ranks = [{"rank": 0, "node": "[bold]x[/bold]", "phase": "[link=http://x]y", "age_s": None}]
    text = drawn(
        draw_observed(an_observed_job(view={"rank_states": ranks}), [("1 s", "[red]note[/red]")])
    )
    assert "[bold]x[/bold]" in text
    assert "[red]note[/red]" in text


def test_the_verdict_is_framed():
    text = drawn(draw_verdict({"status": "hung", "cause": "busy_loop", "summary": "[b]\x1b[2J"}))
    assert "hung: busy_loop" in text
    assert "[b] [2J" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "plain", "has_rich", "kind"),
    [
        (Terminal(), False, True, LiveDisplay),
        (Terminal(), False, False, PlainDisplay),
        (Terminal(), True, True, PlainDisplay),
        (io.StringIO(), False, True, PlainDisplay),
    ],
)
def test_a_live_picture_needs_a_terminal_and_rich(monkeypatch, stream, plain, has_rich, kind):
    monkeypatch.setattr(
        "watchtower.drills.command.find_spec", lambda name: object() if has_rich else None
    )
    assert type(choose_display(stream, plain=plain)) is kind
