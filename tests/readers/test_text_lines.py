"""Chunks of a file, and which words a chunk may contain."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from watchtower.readers.text_lines import WordFilter, blocks_with, chunks, split_lines

WORDS = (b"Init START", b" NCCL work: ", b"a1.b2", b"\xff")
LINES = st.lists(st.sampled_from([*WORDS, b"step 1", b"step 22", b"a", b"1.b2", b""]), max_size=9)


@given(st.lists(LINES, max_size=6))
def test_no_word_of_a_chunk_is_left_out(parts):
    known = WordFilter(WORDS)
    for part in parts:
        data = b"\n".join(part)
        assert {word for word in WORDS if word in data} <= known.words_in(data)


def test_lines_are_the_same_in_any_chunk(monkeypatch):
    raw = b"".join(b"line %d\n" % number for number in range(50))
    monkeypatch.setattr("watchtower.readers.text_lines.CHUNK_BYTES", 64)
    parts = list(chunks(io.BytesIO(raw)))
    assert len(parts) > 5
    texts = [line.text for part in parts for line in split_lines(part) if line.text]
    assert texts == [f"line {number}" for number in range(50)]
    blocks = [block for part in parts for block in blocks_with(part, [b"line 6"], 3)]
    assert [line.number for line in blocks[0]] == [7, 8, 9]
    assert [line.text for line in blocks[0]] == ["line 6", "line 7", "line 8"]


def test_a_last_line_without_an_end_is_with_the_lines_before_it(monkeypatch):
    raw = b"".join(b"line %d\n" % number for number in range(10)) + b"the end"
    for size in range(60, 90):
        monkeypatch.setattr("watchtower.readers.text_lines.CHUNK_BYTES", size)
        parts = list(chunks(io.BytesIO(raw)))
        blocks = [block for part in parts for block in blocks_with(part, [b"line 8"], 9)]
        assert [line.text for line in blocks[0]] == ["line 8", "line 9", "the end"]
