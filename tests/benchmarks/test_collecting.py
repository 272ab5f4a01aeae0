"""Evidence of a rank that is gone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.accuracy.collecting import ask_rank


def test_a_rank_that_is_gone_has_no_dump(tmp_path: Path) -> None:
    assert ask_rank(None, 3, tmp_path) == "its process is gone"
    assert list(tmp_path.iterdir()) == []
