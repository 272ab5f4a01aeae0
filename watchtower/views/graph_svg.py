"""Draws the waits of a summary as SVG: ranks that wait above, those that they wait for below.

A page contains the picture in its HTML, so colours come from the page (classes, `currentColor` and
`Canvas`). A picture in a file of its own has a style. All texts are escaped and have a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from watchtower.views.case_summary import STATE_WORDS, WaitArrow, WaitBox, WaitBoxes
from watchtower.writing.text import clean, count_ranks

BOX_WIDTH = 216
COLUMN = BOX_WIDTH + 24
MARGIN = 8
LINE = 16
"""Pixels between two lines of text."""

GAP = 34
"""Pixels between a box, with the labels below it, and the next layer."""

LETTERS = 28
"""Characters of one line in a box: 7 pixels each."""

BOX_LINES = 4
"""Lines of a box below its first one, at most."""

MAX_LABELS = 3
"""Arrows that are named below a box. The others are counted."""

LABEL_LINES = 2
"""Lines of one label, before that of its source. If all arrows have the same source, it is named
once, at the bottom."""

SHORT_SET = 18
"""Characters of a rank set that stands in the first line of a box. Of a longer one, the first
`SHOWN_RUNS` runs are below it: more numbers would not be read."""

SHOWN_RUNS = 2

TITLE = "Which rank waits for which"

STYLE = """
svg { color-scheme: light dark; color: CanvasText; background: Canvas; font-family: sans-serif }
.box.suspect rect { stroke: #c2410c; fill: #fff1e6 } .label { fill: GrayText }
@media (prefers-color-scheme: dark) { .box.suspect rect { stroke: #fb923c; fill: #3b1d0a } }
"""
"""Of a picture in a file of its own."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A box and its place."""

    box: WaitBox
    x: int
    y: int
    height: int
    labels: tuple[tuple[str, ...], ...]
    """Lines below it, for each of its arrows."""

    @property
    def middle(self) -> int:
        return self.x + BOX_WIDTH // 2


def draw_graph(waits: WaitBoxes, *, is_file: bool = False) -> str:
    """Return the picture as an SVG element. `is_file`: as the content of a file of its own."""
    only = _find_only_source(waits)
    placed, width, height = _place(waits, with_sources=not only)
    if only:
        height += LINE
    head = "".join(_write_head(waits, width, height, is_file))
    arrows = "".join(_write_arrow(placed, arrow) for arrow in waits.arrows)
    boxes = "".join(part for each in placed for part in _write_box(each))
    if not placed:
        boxes = _text(MARGIN, 2 * LINE, "", waits.sentence)
    if only:
        boxes += _text(width // 2, height - MARGIN, "label", f"shown by: {only}", centred=True)
    return f"{head}{arrows}{boxes}</svg>\n"


def _write_head(waits: WaitBoxes, width: int, height: int, is_file: bool) -> Iterator[str]:
    if is_file:
        yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" viewBox="0 0 {width} {height}"'
    yield f' width="{width}" height="{height}" role="img" aria-labelledby="graph-is graph-says"'
    yield ' font-size="13" fill="currentColor">'
    yield f'<title id="graph-is">{TITLE}</title>'
    yield f'<desc id="graph-says">{escape(waits.sentence)}</desc>'
    if is_file:
        yield f"<style>{STYLE}</style>"


def _find_only_source(waits: WaitBoxes) -> str:
    """Return the source of all arrows; empty if they have several."""
    sources = {arrow.source for arrow in waits.arrows}
    return sources.pop() if len(sources) == 1 else ""


def _place(waits: WaitBoxes, *, with_sources: bool) -> tuple[list[_Placed], int, int]:
    """Return the places of the boxes, width and height. The highest layer is at the top."""
    layers: dict[int, list[int]] = {}
    for index, box in enumerate(waits.boxes):
        layers.setdefault(box.layer, []).append(index)
    if not layers:
        return [], max(40 + 7 * len(waits.sentence), COLUMN), 3 * LINE
    columns = max(len(row) for row in layers.values())
    width = columns * COLUMN - (COLUMN - BOX_WIDTH) + 2 * MARGIN
    found: dict[int, _Placed] = {}
    y = MARGIN
    for layer in sorted(layers, reverse=True):
        row = layers[layer]
        height = max(_measure_box(waits.boxes[index]) for index in row)
        left = (width - len(row) * COLUMN + COLUMN - BOX_WIDTH) // 2
        lines = 0
        for column, index in enumerate(row):
            arrows = [a for a in waits.arrows if a.from_box == index]
            labels = _list_labels(arrows, with_sources=with_sources)
            lines = max(lines, sum(len(label) for label in labels))
            x = left + column * COLUMN
            found[index] = _Placed(waits.boxes[index], x, y, height, labels)
        y += height + lines * LINE + GAP
    return [found[index] for index in sorted(found)], width, y - GAP + MARGIN


def _list_labels(arrows: Sequence[WaitArrow], *, with_sources: bool) -> tuple[tuple[str, ...], ...]:
    """Return the lines of each different label of these arrows."""
    named = list(dict.fromkeys((arrow.label, arrow.source) for arrow in arrows))
    labels = [
        (
            *wrap(label, LETTERS + 2, max_lines=LABEL_LINES, placeholder=" …"),
            *((f"({source})",) if with_sources else ()),
        )
        for label, source in named[:MAX_LABELS]
    ]
    if len(named) > MAX_LABELS:
        labels.append((f"and {len(named) - MAX_LABELS} more",))
    return tuple(labels)


def _write_arrow(placed: Sequence[_Placed], arrow: WaitArrow) -> str:
    one, other = placed[arrow.from_box], placed[arrow.to_box]
    # It begins below the labels of its box, so that it crosses none of them.
    top, end = one.y + one.height + 5 + LINE * sum(map(len, one.labels)), other.y
    bend = (top + end) // 2
    way = f"M{one.middle} {top}C{one.middle} {bend} {other.middle} {bend} {other.middle} {end - 7}"
    point = f"M{other.middle} {end}l-5 -9h10z"
    return (
        f'<path class="arrow" d="{way}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'
        f'<path d="{point}"/>'
    )


def _write_box(placed: _Placed) -> Iterator[str]:
    box, (title, *lines) = placed.box, describe_box(placed.box)
    texts = _wrap_box(box)
    name = "box suspect" if box.suspect_ranks else "box"
    yield f'<g class="{name}"><title>{escape(". ".join((title, *lines)))}</title>'
    yield f'<rect x="{placed.x}" y="{placed.y}" width="{BOX_WIDTH}" height="{placed.height}" rx="6"'
    stroke = 3 if box.suspect_ranks else 1
    yield f' fill="Canvas" stroke="currentColor" stroke-width="{stroke}"/>'
    # An inner picture cuts what is wider than the box.
    yield f'<svg x="{placed.x}" y="{placed.y}" width="{BOX_WIDTH}" height="{placed.height}">'
    yield _text(10, 20, "name", clean(title, LETTERS), bold=True)
    for number, line in enumerate(texts):
        yield _text(10, 20 + LINE + 2 + number * LINE, "", clean(line, LETTERS))
    yield "</svg></g>"
    y = placed.y + placed.height
    for label in placed.labels:
        for line in label:
            y += LINE
            yield _text(placed.middle, y, "label", line, centred=True)


def _wrap_box(box: WaitBox) -> list[str]:
    """Return the lines of a box below its first one."""
    lines = [part for line in describe_box(box)[1:] for part in wrap(line, LETTERS)]
    return lines[:BOX_LINES]


def _measure_box(box: WaitBox) -> int:
    """Return the height of a box in pixels."""
    return 20 + LINE * len(_wrap_box(box)) + 12


def describe_box(box: WaitBox) -> tuple[str, ...]:
    """Return the lines of a box: its ranks, their node and state, their place."""
    ranks, numbers = box.rank_set, ""
    title = count_ranks(ranks.count)
    if ranks.count == 1:
        title = f"rank {ranks.text}"
    elif ranks.is_whole and len(ranks.text) <= SHORT_SET:
        title = f"ranks {ranks.text}"
    else:
        runs = ranks.text.split(",")
        is_cut = len(runs) > SHOWN_RUNS or not ranks.is_whole
        numbers = ",".join((*runs[:SHOWN_RUNS], *(("…",) if is_cut else ())))
    state = "wait for each other" if box.is_cycle else STATE_WORDS[box.state]
    if box.suspect_ranks:
        accused = "suspect" if box.suspect_ranks == ranks.text else f"suspect: {box.suspect_ranks}"
        state = f"{accused}, {state}"
    where = ", ".join(filter(None, (state, box.node, numbers)))
    return tuple(filter(None, (title, where, box.call if box.is_cycle else box.place or box.call)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLine:
    """One box of the picture."""

    name: str
    """"rank 5", "480 ranks"."""
    about: str
    """"suspect, not waiting, gpu-001"."""
    place: str
    waits: list[str]
    """"waits for rank 5 in recv number 81"."""
    is_suspect: bool


def list_waits(waits: WaitBoxes) -> list[WaitLine]:
    """Return the picture as lines: the end of the waiting first."""
    order = sorted(range(len(waits.boxes)), key=lambda index: waits.boxes[index].layer)
    return [_list_wait(waits, index) for index in order]


def _list_wait(waits: WaitBoxes, index: int) -> WaitLine:
    box = waits.boxes[index]
    name, about, *places = describe_box(box)
    verb = "waits" if box.rank_set.count == 1 else "wait"
    named = [
        f"{verb} for {describe_box(waits.boxes[arrow.to_box])[0]}"
        f"{f' in {arrow.label}' if arrow.label else ''}"
        for arrow in waits.arrows
        if arrow.from_box == index
    ]
    return WaitLine(
        name=name,
        about=about,
        place="".join(places),
        waits=list(dict.fromkeys(named))[:MAX_LABELS],
        is_suspect=bool(box.suspect_ranks),
    )


def _text(
    x: int, y: int, name: str, text: str, *, bold: bool = False, centred: bool = False
) -> str:
    more = (' font-weight="bold"' if bold else "") + (' text-anchor="middle"' if centred else "")
    of = f' class="{name}"' if name else ""
    return f'<text x="{x}" y="{y}"{of}{more}>{escape(text)}</text>'
