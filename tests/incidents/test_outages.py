"""Which incidents are one outage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.incidents import outages as module
from watchtower.incidents.outages import MAX_INCIDENTS, MAX_OUTAGES, WINDOW_S, Outages
from watchtower.wire.verdict import SharedCause

MOUNT = SharedCause(kind="mount", name="nfs1:/data")
NODE = SharedCause(kind="node", name="nfs1:/data")


def test_incidents_with_one_cause_within_two_minutes_are_one_outage():
    outages = Outages()
    assert outages.join("a", MOUNT, 0.0) == "a"
    assert outages.join("b", MOUNT, 1.0) == "a"
    assert outages.join("c", MOUNT, WINDOW_S) == "a"
    assert outages.join("d", MOUNT, WINDOW_S + 0.1) == "d"
    assert outages.join("e", MOUNT, WINDOW_S + 0.2) == "d"


def test_incidents_with_other_causes_or_without_one_are_apart():
    outages = Outages()
    assert outages.join("a", MOUNT, 0.0) == "a"
    assert outages.join("b", NODE, 0.0) == "b"
    assert outages.join("c", None, 0.0) == ""
    assert outages.join("d", None, 0.0) == ""


def test_a_user_cannot_keep_an_outage_open_for_the_incidents_of_others():
    outages = Outages()
    for second in range(0, 3600, 10):
        outages.join(f"forged-{second}", MOUNT, float(second))
    joined = outages.join("victim", MOUNT, 3600.0)
    assert 3600 - int(joined.removeprefix("forged-")) <= WINDOW_S


def test_a_full_outage_is_followed_by_another_one():
    outages = Outages()
    joined = [outages.join(str(number), MOUNT, 0.0) for number in range(MAX_INCIDENTS + 2)]
    assert set(joined[:MAX_INCIDENTS]) == {"0"}
    assert set(joined[MAX_INCIDENTS:]) == {str(MAX_INCIDENTS)}


def test_a_restarted_tower_continues_its_outages():
    outages = Outages()
    outages.restore("a", MOUNT, 100.0, 1000.0)
    outages.restore("a", MOUNT, 90.0, 1000.0)
    outages.restore("", MOUNT, 90.0, 1000.0)  # of a release without outages
    outages.restore("x", None, 90.0, 1000.0)
    assert outages.join("b", MOUNT, 1019.0) == "a"
    assert outages.join("c", MOUNT, 1021.0) == "c"


def test_a_wall_clock_that_was_set_back_makes_no_outage_of_the_future():
    outages = Outages()
    outages.restore("a", MOUNT, -1e6, 1000.0)
    assert outages.join("b", MOUNT, 1000.0 + WINDOW_S + 1) == "b"


def test_the_number_of_outages_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_OUTAGES", 3)
    outages, causes = Outages(), [SharedCause(kind="mount", name=str(n)) for n in range(4)]
    assert [outages.join(cause.name, cause, 0.0) for cause in causes] == list("0123")
    assert outages.join("again", causes[3], 0.0) == "3"
    assert outages.join("again", causes[0], 0.0) == "again"
    assert MAX_OUTAGES >= 4096


@given(st.lists(st.tuples(st.sampled_from((MOUNT, NODE, None)), st.floats(0, 100)), max_size=60))
@examples(200)
def test_any_outage_has_one_cause_and_is_named_by_its_first_incident(steps):
    outages, now = Outages(), 0.0
    members: dict[str, list[tuple[str, SharedCause | None, float]]] = {}
    for number, (cause, wait_s) in enumerate(steps):
        now += wait_s
        outage = outages.join(str(number), cause, now)
        if outage:
            members.setdefault(outage, []).append((str(number), cause, now))
    for outage, found in members.items():
        assert found[0][0] == outage
        assert len({cause for _, cause, _ in found}) == 1
        assert found[-1][2] - found[0][2] <= WINDOW_S
