"""Recorded hangs: a tower that gets the same inputs has the same effects, to the byte."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.properties import is_thorough
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.replay import replay

FOLDER = Path(__file__).parents[1] / "recordings"
ALL = sorted(path.stem for path in FOLDER.glob("*.gz"))
QUICK = ["dataloader_sleep", "same_name_twice", "tower_restart_2"]
"""A hang, two jobs, and a tower that goes on with the hang of its last run."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALL if is_thorough() else QUICK)
def test_the_effects_of_a_recorded_tower_are_the_same(name, tmp_path, update_golden):
    with closing(SqliteStore(tmp_path / "x.db", inline=True)) as store:
        lines: list[str] = []
        replay(
            FOLDER / f"{name}.gz",
            store,
            lambda effect: lines.append(msgspec.json.encode(effect).decode()),
        )
    golden = FOLDER / f"{name}.jsonl"
    if update_golden:
        golden.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    expected = golden.read_text("utf-8").splitlines()
    first = next((pair for pair in zip(lines, expected, strict=False) if pair[0] != pair[1]), None)
    assert first is None, "\n".join(first or ())
    assert len(lines) == len(expected)
