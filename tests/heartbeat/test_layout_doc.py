"""docs/heartbeat-page.md is what other languages are written from: it must match the code."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from watchtower_heartbeat import layout

DOCUMENT = Path(__file__).parents[2] / "docs" / "heartbeat-page.md"
# | 152 | 8 | i64 | `rank` | ...
ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \| `(\w+)` \|", re.MULTILINE)

# | 16 | `sends_begun` | ...
WORD_OF_A_ROW = re.compile(r"^\| (\d+) \| `(\w+)` \|", re.MULTILINE)

HEAD_AND_COUNTS = {
    "magic": (layout.MAGIC_AT, len(layout.MAGIC), "bytes"),
    "version": (layout.VERSION_AT, 8, "i64"),
    "size": (layout.SIZE_AT, 8, "i64"),
    "step": (layout.STEP_AT, 8, "i64"),
    "time_ns": (layout.TIME_NS_AT, 8, "i64"),
    "step_begun": (layout.STEP_BEGUN_AT, 8, "i64"),
    "cold_done": (layout.COLD_DONE_AT, 8, "i64"),
    "cold_begun": (layout.COLD_BEGUN_AT, 8, "i64"),
    "transfers": (
        layout.TRANSFERS_AT,
        8 * layout.TRANSFER_ROWS * len(layout.TRANSFER_WORDS),
        "rows",
    ),
    "transfers_left_out": (layout.TRANSFERS_LEFT_OUT_AT, 8, "i64"),
}


def documented() -> list[tuple[str, tuple[int, int, str]]]:
    rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    return [(name, (int(at), int(size), kind)) for at, size, kind, name in rows]


def defined() -> dict[str, tuple[int, int, str]]:
    words = {name: (at, 8, "i64") for name, at in layout.COLD_WORDS.items()}
    texts = {name: (at, size, "text") for name, (at, size) in layout.COLD_TEXTS.items()}
    return HEAD_AND_COUNTS | words | texts


def test_the_table_has_every_field_at_its_place_once() -> None:
    assert sorted(documented()) == sorted(defined().items())


def test_the_table_is_in_the_order_of_the_page() -> None:
    offsets = [place[0] for _, place in documented()]
    assert offsets == sorted(offsets)


def test_fields_do_not_overlap_and_stay_inside_the_page() -> None:
    places = sorted((at, at + size) for at, size, _ in defined().values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    assert places[-1][1] <= layout.PAGE_SIZE


def test_every_word_is_aligned_so_that_one_store_writes_it() -> None:
    assert all(at % 8 == 0 for at, _, kind in defined().values() if kind == "i64")


def test_the_words_of_a_beat_share_one_cache_line_with_nothing_else() -> None:
    line = layout.STEP_AT // 64
    assert {name for name, (at, _, _) in defined().items() if at // 64 == line} == {
        "step",
        "time_ns",
        "step_begun",
    }


def test_the_document_states_the_constants_and_the_fields_that_start_unknown() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert f"`{layout.MEMFD_NAME}`" in text
    assert f"version is {layout.VERSION}" in text
    starts = re.search(r"start at -1: (.*?)\.", text, re.DOTALL)
    assert starts is not None
    named = set(re.findall(r"`(\w+)`", starts.group(1)))
    assert named == {"step", "step_begun", *layout.STARTS_UNKNOWN}


def test_the_document_gives_the_words_of_a_row_of_transfers() -> None:
    words = WORD_OF_A_ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert words == [(str(8 * at), name) for at, name in enumerate(layout.TRANSFER_WORDS)]


def test_the_document_states_the_constants_of_the_list_of_groups() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert f"`{layout.GROUPS_MEMFD_NAME}`" in text
    assert f"| {layout.GROUPS_LENGTH_AT} | 8 | i64 | length" in text
    assert f"| {layout.GROUPS_TEXT_AT} | | text | one line per group" in text


def test_the_document_lists_the_ways_to_end_by_number() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for number, word in (
        (layout.ENDED_NOT, "none"),
        (layout.ENDED_FINISHED, "finished"),
        (layout.ENDED_EXCEPTION, "exception"),
        (layout.ENDED_EXIT, "exit"),
    ):
        assert f"{number} {word}" in text
