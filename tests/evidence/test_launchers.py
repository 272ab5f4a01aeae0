"""What the launchers of a job without ranks show together."""

import pytest

from watchtower.evidence.case import LauncherEvidence
from watchtower.evidence.launchers import MAX_NAMES, expand_nodes, read_meeting
from watchtower.wire.report import FOR_HEAD, FOR_RANKS, WaitingLauncher


def waiting(node, waits_s=40.0, **values):
    values = {"nodes": 2, "most_nodes": 2, "endpoint": "n1:29500", **values}
    launcher = WaitingLauncher(
        job="j", launcher="any", pid=7, start_time=1, waits_s=waits_s, **values
    )
    return LauncherEvidence(node=node, launcher=launcher)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],login", ["n1", "n2", "n3", "n7", "login"]),
        ("gpu-[008-010]", ["gpu-008", "gpu-009", "gpu-010"]),
        ("", []),
        ("n[x-y]", []),
        ("n[3-1]", []),
    ],
)
def test_a_list_of_nodes_is_expanded(text, names):
    assert list(expand_nodes(text)) == names


@pytest.mark.parametrize("text", ["n[1-999999999]", "n[1-9],[1-9]" * 900, "[" * 4000, "n" * 9000])
def test_a_hostile_list_is_bounded(text):
    assert len(list(expand_nodes(text))) <= MAX_NAMES


def test_the_missing_nodes_are_named_if_the_scheduler_names_them():
    meeting = read_meeting([waiting("n1.cluster", node_list="n[1-2]")])
    assert meeting.describe() == "1 of 2 nodes joined, waiting for 1 (n2); since 40 s"
    assert read_meeting([waiting("n1")]).describe() == (
        "1 of 2 nodes joined, waiting for 1; since 40 s"
    )


def test_a_list_about_other_nodes_names_none():
    assert read_meeting([waiting("drill-a", node_list="n[1-2]")]).missing == ()
    assert read_meeting([waiting("n1", node_list="n[1-4]")]).missing == ()


def test_each_node_that_joins_gives_more_time():
    meeting = read_meeting([waiting("n1", 90.0), waiting("n2", 5.0)])
    assert (meeting.waits_s, meeting.since_last_s, meeting.lacking) == (90.0, 5.0, 0)
    assert meeting.describe() == "2 of 2 nodes joined, waiting for each other; since 90 s"


def test_launchers_of_two_addresses_or_runs_are_told_apart():
    meeting = read_meeting(
        [
            waiting("n1"),
            waiting("n2"),
            waiting("n3", endpoint="n9:29500"),
            waiting("n4", run_id="b"),
        ]
    )
    assert meeting.endpoints == {
        "n1:29500": ("n1", "n2"),
        "n9:29500": ("n3",),
        "n1:29500 (b)": ("n4",),
    }
    assert len(read_meeting([waiting("n1"), waiting("n2", endpoint="")]).endpoints) == 1


def test_nodes_that_join_a_head_wait_for_it():
    one = {"waits_for": FOR_HEAD, "endpoint": "n0:6379"}
    meeting = read_meeting([waiting("n1", **one), waiting("n2", **one)])
    assert meeting.describe() == "2 of 3 nodes joined, waiting for 1 (n0:6379); since 40 s"
    assert meeting.is_judged


def test_ranks_that_a_launcher_starts_elsewhere_are_never_late():
    meeting = read_meeting([waiting("login", waits_for=FOR_RANKS, node_list="n[1-3]")])
    assert meeting.describe() == "no rank was seen yet on n1, n2, n3; since 40 s"
    assert (meeting.is_judged, meeting.expected, meeting.joined) == (False, 3, ())


def test_a_launcher_on_a_node_counts_more_than_the_one_that_started_it():
    srun = waiting("login", waits_for=FOR_RANKS, node_list="n[1-2]")
    assert read_meeting([srun, waiting("n1")]) == read_meeting([waiting("n1")])


def test_a_launcher_that_has_ended_has_not_joined():
    meeting = read_meeting([waiting("n1", ended="pid 7 listens at n1:29500"), waiting("n2")])
    assert meeting.ended == {"n1": "pid 7 listens at n1:29500"}
    assert (meeting.joined, meeting.lacking) == (("n2",), 1)
