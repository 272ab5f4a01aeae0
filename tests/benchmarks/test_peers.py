"""The opinion of each peer about small hung jobs, by value."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy.asking import NOT_ASKED, ask_peers
from benchmarks.accuracy.evidence import NO_SOCKET, Evidence, read_evidence
from benchmarks.accuracy.peers import PEERS, count_below_leader, frtrace, stack_majority
from benchmarks.accuracy.peers.peer import Opinion, Peer, always
from tests.benchmarks.peer_evidence import a_recorder, cascade, evidence_of, recorded_cascade
from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_TORCH_ALL_REDUCE,
    a_case,
    a_missing_rank,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.recording import a_recorded_case, calls


def test_the_rule_of_each_group_accuses_the_victim_of_a_cascade_too() -> None:
    opinion = count_below_leader.judge(evidence_of(cascade()))
    assert opinion.accused == (2, 3)
    assert "group 2-3: [3] below 6" in opinion.said


def test_a_rank_without_records_counts_as_below_everybody() -> None:
    made = {rank: {"world": calls("all_reduce", open=1)} for rank in (0, 2)}
    case = a_recorded_case(ranks_in(3), {"world": (0, 1, 2)}, made)
    assert count_below_leader.judge(evidence_of(case)).accused == (1,)


def test_equal_counts_accuse_nobody_and_no_records_are_no_judgement() -> None:
    made = {rank: {"world": calls("all_reduce", open=1)} for rank in range(3)}
    case = a_recorded_case(ranks_in(3), {"world": (0, 1, 2)}, made)
    assert count_below_leader.judge(evidence_of(case)) == Opinion(
        said="no rank is below the leader"
    )
    assert count_below_leader.judge(evidence_of(a_case(ranks_in(3)))).failed


def test_whoever_is_not_where_most_are_is_accused() -> None:
    case = a_case(with_rank(ranks_in(4), a_rank(2, FETCHING)))
    assert stack_majority.judge(evidence_of(case)).accused == (2,)


def test_a_rank_without_a_stack_is_not_where_most_are() -> None:
    case = a_case([*ranks_in(3), a_missing_rank(3)])
    assert stack_majority.judge(evidence_of(case)).accused == (3,)


def test_nobody_is_accused_on_a_tie_or_where_all_are_alike() -> None:
    tie = a_case([*ranks_in(2), a_rank(2, FETCHING), a_rank(3, FETCHING)])
    assert stack_majority.judge(evidence_of(tie)).accused == ()
    assert stack_majority.judge(evidence_of(a_case(ranks_in(4)))).accused == ()


def test_stacks_are_told_apart_by_every_line() -> None:
    other = IN_TORCH_ALL_REDUCE.replace("main.py:41", "main.py:40")
    case = a_case([*ranks_in(2, IN_TORCH_ALL_REDUCE), a_rank(2, other), a_rank(3, FETCHING)])
    assert stack_majority.judge(evidence_of(case)).accused == (2, 3)


def an_answer(*lines: str, code: int = 0) -> Opinion:
    return frtrace.read_answer("\n".join(lines), code)


def test_the_analyzer_accuses_missing_ranks_and_culprits() -> None:
    assert an_answer("missing ranks: {3}", "world size: 2", "missing ranks: {2, 5}").accused == (
        2,
        3,
        5,
    )
    culprits = "error msg: Culprit rank 2; Error type: A, Culprit rank 0; Error type: A"
    assert an_answer(culprits).accused == (0, 2)
    assert an_answer(culprits).cause == "mismatched_collective"


def test_an_analyzer_that_cannot_decide_or_breaks_accuses_nobody() -> None:
    torn = an_answer("Traceback (most recent call last):", "KeyError: ('0', 3)", code=1)
    assert torn == Opinion(said="it failed: KeyError: ('0', 3)", failed=True)
    undecided = an_answer("We cannot decide what's wrong, we missed FR dumps from ranks ({2})")
    assert (undecided.accused, undecided.failed) == ((), False)


def test_repairing_gives_groups_the_same_name_on_all_members() -> None:
    evidence = recorded_cascade()
    repaired = [frtrace.repair(evidence.recorders[rank], evidence.groups[rank]) for rank in (0, 2)]
    assert repaired[0]["pg_config"].keys() & repaired[1]["pg_config"].keys() == {"0,2 #0"}
    assert repaired[1]["pg_config"]["0,2 #0"]["ranks"] == "[0, 2]"
    assert repaired[1]["entries"][0]["process_group"] == ("2-3 #0", "2-3 #0")
    assert evidence.recorders[0]["entries"][0]["process_group"] == ["1", "undefined"]


def test_repairing_leaves_out_entries_of_unknown_groups() -> None:
    assert frtrace.repair(a_recorder(("7", 1)), [("1", (0, 1))])["entries"] == []


def raise_at(_: Evidence) -> Opinion:
    raise KeyError("no such rank")


def never_end(_: Evidence) -> Opinion:
    raise subprocess.TimeoutExpired("fr_trace", 120)


def a_peer(judge: Any) -> Peer:
    return Peer(name="it", about="", applies=always, judge=judge)


def test_a_peer_that_breaks_or_takes_too_long_has_an_opinion_too() -> None:
    evidence = evidence_of(cascade())
    broken = ask_peers(evidence, [a_peer(raise_at)])["it"]
    assert (broken["said"], broken["failed"]) == ("it failed: KeyError: 'no such rank'", True)
    late = ask_peers(evidence, [a_peer(never_end)])["it"]
    assert (late["said"], late["failed"]) == ("no answer within 120 s", True)


def test_without_an_incident_no_peer_is_asked(tmp_path: Path) -> None:
    answers = ask_peers(read_evidence(tmp_path, "torch"))
    assert set(answers) == {peer.name for peer in PEERS}
    assert all(answer["why_not"] == NOT_ASKED for answer in answers.values())


def test_a_backend_without_records_is_judged_by_its_stacks_only() -> None:
    case = a_case(with_rank(ranks_in(4, IN_ALL_REDUCE), a_rank(2, FETCHING)))
    answers = ask_peers(Evidence(backend="stdlib", case=case))
    assert answers["stack_majority"]["accused"] == [2]
    asked = [name for name, answer in answers.items() if not answer["why_not"]]
    assert asked == ["stack_majority"]


def test_a_job_whose_recorders_nobody_can_ask_is_judged_by_its_stacks_only() -> None:
    mute = evidence_of(cascade(), missing={0: NO_SOCKET, 1: "its process is gone"})
    answers = ask_peers(mute)
    asked = [name for name, answer in answers.items() if not answer["why_not"]]
    assert asked == ["stack_majority"]
    assert frtrace.judge_as_shipped(evidence_of(cascade())).failed


def test_a_recorder_without_entries_is_empty_and_not_unreadable(tmp_path: Path) -> None:
    bundle = {"case": msgspec.to_builtins(cascade())}
    (tmp_path / "incident.json").write_text(json.dumps(bundle))
    (tmp_path / "records_0.json").write_text('{"version": "2.10", "pg_config": {}}')
    evidence = read_evidence(tmp_path, "torch")
    assert evidence
    assert evidence.recorders[0]["entries"] == []


def test_evidence_is_read_from_its_folder(tmp_path: Path) -> None:
    case, recorder = cascade(), a_recorder(("1", 1))
    bundle = {"case": msgspec.to_builtins(case)}
    (tmp_path / "incident.json").write_text(json.dumps(bundle))
    (tmp_path / "records_10.json").write_text(json.dumps(recorder))
    (tmp_path / "groups_10.json").write_text('[["1", [0, 10]]]')
    (tmp_path / "missing.json").write_text('{"2": "its process is gone"}')
    assert read_evidence(tmp_path, "torch") == Evidence(
        backend="torch",
        case=case,
        recorders={10: recorder},
        groups={10: [("1", (0, 10))]},
        missing={2: "its process is gone"},
    )
