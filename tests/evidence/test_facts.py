import pytest

from watchtower.evidence.facts import read_facts

TABLES = [
    ("frame_classes", "frame"),
    ("kernel_waits", "wait"),
    ("kernel_waits", "target"),
    ("file_systems", "file_system"),
    ("wait_places", "frame"),
    ("wait_places", "call"),
]


@pytest.mark.parametrize(("name", "entries"), TABLES)
def test_every_fact_gives_its_reason(name, entries):
    facts = read_facts(name)[entries]
    assert facts
    assert all(len(fact["why"]) > 3 for fact in facts)
