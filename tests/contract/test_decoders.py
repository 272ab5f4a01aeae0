"""The types of messages are known before a thread reads one."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["agent", "watchtower", "benchmarks"])
def test_no_thread_is_the_first_to_read_a_type(folder: str):
    """msgspec 0.22 ends the process when two threads are the first to read one type at once."""
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*.py")
        if "msgspec.json.decode(" in path.read_text("utf-8")
    ]
    assert found == [], "make a `msgspec.json.Decoder` at import instead"
