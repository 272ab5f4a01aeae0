from dataclasses import replace

import pytest

from watchtower.incidents.kill_text import (
    KillFacts,
    find_kill_loss,
    find_timeout_at,
    write_steps_lost,
)
from watchtower.wire.verdict import Status, Verdict

FACTS = KillFacts(
    ranks=512,
    dumps_in=512,
    dumps_wanted=512,
    step=1233,
    checkpoint_step=1200,
    step_s=0.4,
    rank=37,
    suspects=1,
    cause="dataloader_stall",
    domain="storage",
)

AT = 1.7e9
"""22:13:20 UTC on 2023-11-14."""
NOW, HOUR, DAY = AT - 400, 3600, 86_400

COMPLETE = "A kill loses no evidence (stacks of 512 of 512 ranks are collected)."
NOT_KNOWN = "It is not known whether a kill loses evidence."
STEPS = " It loses up to 33 steps (13 s of training): checkpoint at step 1200."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, COMPLETE + STEPS),
        ({"dumps_in": 513}, COMPLETE + STEPS),
        (
            {"checkpoint_step": None},
            f"{COMPLETE} The lost steps are not known: no checkpoint was seen.",
        ),
        (
            {"step": None},
            f"{COMPLETE} It loses the steps after the last checkpoint seen, at step 1200.",
        ),
        (
            {"step": 1201},
            f"{COMPLETE} It loses up to 1 step (0.4 s of training): checkpoint at step 1200.",
        ),
        ({"step": 1200}, f"{COMPLETE} It loses no steps: checkpoint at step 1200."),
        ({"step": 7}, f"{COMPLETE} It loses no steps: checkpoint at step 1200."),
        (
            {"dumps_in": 480},
            f"A kill now loses evidence (stacks of only 480 of 512 ranks are collected).{STEPS}",
        ),
        (
            {"ranks": 513},
            "A kill loses no evidence (stacks of 512 of the 512 ranks that agents report are "
            f"collected).{STEPS}",
        ),
        ({"dumps_in": None}, NOT_KNOWN + STEPS),
        ({"dumps_wanted": 0}, NOT_KNOWN + STEPS),
        ({"dumps_in": -1}, NOT_KNOWN + STEPS),
        ({"status": "never_started", "step": None}, f"{COMPLETE} It loses no steps."),
        (
            {"cause": "uninterruptible_io"},
            f"{COMPLETE}{STEPS} Rank 37 is in state D: a kill may not end it until its IO returns.",
        ),
        (
            {"cause": "uninterruptible_io", "domain": "gpu", "suspects": 8},
            f"{COMPLETE}{STEPS} The suspects are in the GPU driver: a kill may not end them until "
            "their call to the driver returns.",
        ),
        (
            {"cause": "process_frozen"},
            f"{COMPLETE}{STEPS} Rank 37 is frozen: a kill may not end it until its cgroup is "
            "thawed.",
        ),
    ],
)
def test_what_a_kill_loses_is_the_missing_stacks_and_the_steps_since_the_checkpoint(
    changes, sentence
):
    assert " ".join(find_kill_loss(replace(FACTS, **changes), NOW).sentences) == sentence


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (AT - 400, "should end it at about 22:13 UTC."),
        (AT, "should have ended it at about 22:13 UTC."),
        (AT - DAY, "should end it at about 2023-11-14 22:13 UTC."),
        (AT + 2 * HOUR, "should have ended it at about 2023-11-14 22:13 UTC."),
        (None, "expires at about 2023-11-14 22:13 UTC."),
    ],
)
def test_the_end_of_the_timeout_is_a_prediction_until_it_has_passed(now, words):
    loss = find_kill_loss(replace(FACTS, timeout_s=600.0, timeout_at=AT), now)
    assert loss.timeout_text == f"The job's own timeout (10 min) {words}"


def test_without_a_known_end_the_timeout_is_left_out():
    assert find_kill_loss(replace(FACTS, timeout_s=600.0), NOW).timeout_text == ""


@pytest.mark.parametrize(
    ("as_of", "before", "at"),
    [
        (AT, None, AT + 580),
        (AT, AT + 560, AT + 560),  # an inexact clock: a message must not change for it
        (AT, AT + 500, AT + 580),
    ],
)
def test_the_end_of_the_timeout_counts_from_the_begin_of_the_stall(as_of, before, at):
    verdict = Verdict(
        job="llama",
        generation=1,
        status=Status.HUNG,
        summary="",
        stalled_for_s=20.0,
        collective_timeout_s=600.0,
    )
    assert find_timeout_at(verdict, as_of, before) == at
    assert find_timeout_at(replace(verdict, collective_timeout_s=None), as_of, before) is None


def test_the_same_facts_are_values_for_programs():
    loss = find_kill_loss(FACTS, NOW)
    assert (loss.loses_evidence, loss.lost_steps) == (False, 33)
    loss = find_kill_loss(KillFacts(), NOW)
    assert (loss.loses_evidence, loss.lost_steps) == (None, None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "Up to 33 steps (13 s of training) since the checkpoint seen at step 1200 were lost "
            "unless the job saved them later.",
        ),
        ({"checkpoint_step": None}, "The lost steps are not known: no checkpoint was seen."),
        ({"step": None}, "All steps after the checkpoint at step 1200 were lost."),
        ({"status": "never_started"}, "No step was lost: there was none."),
        ({"step": 1200}, "No step was lost after the checkpoint seen at step 1200."),
    ],
)
def test_what_the_end_of_a_job_has_lost(changes, sentence):
    assert write_steps_lost(replace(FACTS, **changes)) == sentence
