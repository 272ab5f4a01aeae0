"""The picture of the waits: XML that a browser reads, whatever names it contains."""

from xml.etree import ElementTree

import pytest

from tests.views.summary.cases import GOLDENS, read_golden, summary_of
from watchtower.views.case_summary import RankState, WaitArrow, WaitBox, WaitBoxes, make_rank_set
from watchtower.views.graph_svg import BOX_WIDTH, TITLE, draw_graph

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</svg><script>alert("1")</script>&amp;\u202e' + "w" * 300


def a_box(first: int, count: int, layer: int, **values) -> WaitBox:
    known = {
        "rank_set": make_rank_set(range(first, first + count)),
        "suspect_ranks": "",
        "state": RankState.WAITING,
        "place": "all_reduce, train.py:22 in train",
        "node": "",
        "is_cycle": False,
        "call": "",
        "layer": layer,
    }
    return WaitBox(**(known | values))


def read(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    _, _, width, height = map(int, root.attrib["viewBox"].split())
    for rect in root.iter(f"{SVG}rect"):
        x, y = int(rect.attrib["x"]), int(rect.attrib["y"])
        assert 0 <= x <= width - BOX_WIDTH
        assert 0 <= y <= height - int(rect.attrib["height"])
    return root


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_the_picture_of_a_golden_has_its_boxes_and_its_sentence(folder):
    waits = summary_of(read_golden(folder))[1].waits
    for is_file in (False, True):
        root = read(draw_graph(waits, is_file=is_file))
        assert len(list(root.iter(f"{SVG}rect"))) == len(waits.boxes)
        assert root.find(f"{SVG}title").text == TITLE
        assert root.find(f"{SVG}desc").text == waits.sentence


def test_a_picture_in_a_page_has_no_style_and_no_script():
    waits = WaitBoxes(boxes=(a_box(0, 1, 0),), sentence="x.")
    assert "style" not in draw_graph(waits)
    assert "<style>" in draw_graph(waits, is_file=True)


def test_markup_in_names_stays_text():
    box = a_box(0, 2, 1, place=HOSTILE, node=HOSTILE, call=HOSTILE)
    arrow = WaitArrow(from_box=0, to_box=1, label=HOSTILE, source="collective log")
    waits = WaitBoxes(
        boxes=(box, a_box(2, 1, 0, suspect_ranks="2")), arrows=(arrow,), sentence=HOSTILE
    )
    root = read(draw_graph(waits, is_file=True))
    known = {"svg", "title", "desc", "style", "g", "rect", "text", "path"}
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == known
    assert all(len(each.text) <= 40 for each in root.iter(f"{SVG}text"))


def test_no_waits_are_a_sentence():
    root = read(draw_graph(WaitBoxes(sentence="No rank is known to wait for another rank.")))
    assert [each.text for each in root.iter(f"{SVG}text")] == [root.find(f"{SVG}desc").text]


def test_two_boxes_never_overlap():
    boxes = (*(a_box(n * 10, 10, 2) for n in range(5)), a_box(60, 5, 1), a_box(70, 1, 0))
    arrows = [WaitArrow(from_box=n, to_box=5, label="recv", source="stack") for n in range(5)]
    arrows += [WaitArrow(from_box=5, to_box=6, label="barrier 3", source="stack")]
    root = read(draw_graph(WaitBoxes(boxes=boxes, arrows=tuple(arrows), sentence="x.")))
    rects = list(root.iter(f"{SVG}rect"))
    places = [(int(each.attrib["x"]), int(each.attrib["y"])) for each in rects]
    heights = [int(each.attrib["height"]) for each in rects]
    for n, (x, y) in enumerate(places):
        for other_x, other_y in places[:n]:
            assert abs(x - other_x) >= BOX_WIDTH or abs(y - other_y) >= min(heights)
