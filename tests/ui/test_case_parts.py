"""The parts of a page that show the evidence: their values, and what a browser gets of them."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.diagnosis import builders as b
from tests.synthesis.evidence import Maker
from tests.synthesis.faults import LOADING
from tests.synthesis.layout import Layout
from tests.synthesis.timeline import run
from tests.tower.simulator import Simulation, hang
from tests.ui.browsing import Page, check_page, get
from tests.ui.test_stories import app_of
from tests.views.summary.cases import GOLDENS, read_golden, summary_of
from watchtower.tower.stored_incidents import read_summary
from watchtower.ui.case_parts import (
    MAX_ROWS,
    ROW,
    show_contrast,
    show_graph,
    show_ranks,
    show_stacks,
)
from watchtower.ui.templates import make_environment
from watchtower.ui.words import cut_set, name_frame
from watchtower.views.case_summary import CaseSummary, RankState, make_rank_set
from watchtower.views.summary.grid import GridRank, build_grid

ENVIRONMENT = make_environment()

EVIL = "<script>alert(1)</script>"


def render(summary: CaseSummary) -> Page:
    """Render all parts of a summary as one page."""
    parts = {
        "graph": show_graph(summary),
        "contrast": show_contrast(summary),
        "ranks": show_ranks("incidents/01", summary.ranks),
        "stacks": show_stacks(summary.stacks),
    }
    html = "".join(
        ENVIRONMENT.get_template(f"parts/{name}.html").render(part=values, root="./")
        for name, values in parts.items()
        if values is not None
    )
    page = Page(f"<main>{html}</main>")
    for tag, attributes in page.tags:
        assert tag not in ("style", "script")
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
    assert len(page.ids) == len(set(page.ids))
    return page


@pytest.mark.long
@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_the_parts_of_a_golden_can_be_shown(folder):
    diagnosis, summary = summary_of(read_golden(folder))
    page = render(summary)
    assert summary.waits.sentence in page.text
    for suspect in diagnosis.suspects[:1]:
        assert f"Rank {suspect.rank}" in page.text or summary.contrast is None


def test_text_of_processes_stays_text():
    stack = f"{EVIL} /job/{EVIL}.py:3 < main /job/main.py:1"
    ranks = [b.a_rank(0, stack, node=EVIL, phase=EVIL, target=EVIL), *b.ranks_in(4)[1:]]
    page = render(summary_of(b.a_case(ranks))[1])
    assert EVIL in page.text


def test_the_branch_of_the_suspect_is_first_marked_and_open():
    ranks = b.with_rank(b.ranks_in(8), b.a_rank(5, b.FETCHING, syscall="read"))
    summary = summary_of(b.a_case(ranks))[1]
    shown = show_stacks(summary.stacks)
    assert shown.about == "8 ranks, 2 different stacks"
    assert [(each.count, each.is_suspect) for each in shown.branches] == [
        ("1 rank", True),
        ("7 ranks", False),
    ]


def test_a_long_chain_is_one_line_without_its_middle():
    frames = " < ".join(f"f{n} /job/a.py:{n}" for n in range(40))
    (branch,) = show_stacks(summary_of(b.a_case(b.ranks_in(3, frames)))[1].stacks).branches
    assert (len(branch.first), branch.hidden, len(branch.last)) == (3, 30, 7)
    assert name_frame(branch.first[0]) == "f39 a.py:39"
    assert name_frame(branch.last[-1]) == "f0 a.py:0"


def test_the_chart_of_stacks_is_as_wide_as_the_ranks_and_links_to_the_list():
    ranks = b.with_rank(b.ranks_in(8), b.a_rank(5, b.FETCHING, syscall="read"))
    summary = summary_of(b.a_case(ranks))[1]
    shown = show_stacks(summary.stacks)
    outermost = [bar for bar in shown.bars if bar.y == 0]
    assert [(bar.x, bar.width, bar.is_suspect) for bar in outermost] == [
        (0.0, 124.0, True),
        (125.0, 874.0, False),
    ]
    page = render(summary)
    links = {address for address in page.addresses if address.startswith("#stack-")}
    assert links == {f"#{name}" for name in page.ids if name.startswith("stack-")}
    assert outermost[1].text in page.text


def test_the_chart_of_stacks_is_empty_of_one_stack_and_bounded_for_deep_ones():
    assert show_stacks(summary_of(b.a_case(b.ranks_in(3)))[1].stacks).bars == []
    deep = [
        b.a_rank(n, " < ".join(f"f{d}_{max(0, n - d)} /job/a.py:{d}" for d in range(40)))
        for n in range(8)
    ]
    shown = show_stacks(summary_of(b.a_case(deep))[1].stacks)
    assert 0 < shown.height <= MAX_ROWS * ROW


def test_a_rank_set_is_cut_between_two_ranks():
    assert cut_set(make_rank_set(range(0, 40, 2)), 10) == "0,2,4,6,8,…"
    assert cut_set(make_rank_set([1, 2, 3])) == "1-3"


def test_the_version_of_the_grid_changes_with_its_cells_only():
    ranks = [GridRank(n, "a", RankState.STEPPING, 5, "", "") for n in range(4)]
    one = show_ranks("jobs/x", build_grid(ranks))
    later = show_ranks("jobs/x", build_grid([each._replace(step=6) for each in ranks]))
    late = show_ranks("jobs/x", build_grid([ranks[0]._replace(step=4), *ranks[1:]]))
    assert later == one, "nothing changes while all ranks step together"
    assert (late.cells != one.cells, late.description == one.description) == (True, True)
    assert one.about == "4 ranks on 1 node: 4 stepping"


def test_the_parts_of_16384_ranks_are_small():
    layout = Layout(tensor=8, data=8, pipeline=4)
    stuck = layout.size // 3
    _, summary = summary_of(Maker(layout).make(run(layout, stops={stuck: 1}), {stuck: LOADING}))
    ranks = [
        GridRank(n, f"gpu-{n // 8:04}", RankState.WAITING, 41, "", "all_reduce, train.py:22")
        for n in range(16_384)
    ]
    shown = show_ranks("incidents/01", build_grid(ranks))
    html = ENVIRONMENT.get_template("parts/ranks.html").render(part=shown, root="./")
    assert len(html) < 4_000
    whole = render(replace(summary, ranks=build_grid(ranks)))
    assert sum(map(len, whole.texts)) < 20_000


def test_the_pages_of_a_hang_show_the_evidence(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        app = app_of(sim)
        healthy = check_page(await get(app, "/jobs/llama"))
        assert "4 ranks on 2 nodes: 4 stepping" in healthy.text
        assert "graph" not in healthy.ids
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(1)
        suspect = check_page(await get(app, "/jobs/llama"))
        assert {"ranks", "graph", "contrast", "stacks"} <= set(suspect.ids)
        await sim.report(11)
        (incident,) = await sim.incidents()
        answer = await get(app, f"/incidents/{incident.id}")
        page = check_page(answer)
        assert {"ranks", "graph", "contrast", "stacks"} <= set(page.ids)
        summary = await read_summary(sim.tower, incident.id)
        assert summary.waits.sentence in page.text
        assert f"api/v1/incidents/{incident.id}/ranks" in answer.body
        picture = answer.body[answer.body.index("<svg xmlns") :]
        picture = picture[: picture.index("</svg>\n") + 6]
        assert ElementTree.fromstring(picture).attrib["role"] == "img"

    tell(story)


def test_a_page_of_an_incident_without_a_summary_leaves_its_parts_out(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        (incident,) = await sim.incidents()
        sim.store.write(lambda db: db.execute("DELETE FROM summaries")).result()
        page = check_page(await get(app_of(sim), f"/incidents/{incident.id}"))
        assert not {"ranks", "graph", "contrast", "stacks"} & set(page.ids)

    tell(story)
