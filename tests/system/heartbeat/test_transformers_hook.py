"""The callback for Hugging Face's Trainer, with the real Trainer, seen from another process."""

from __future__ import annotations

import pytest

from tests.system.frameworks import needs
from tests.system.heartbeat.heartbeat_trainer import Trainer, watch

pytestmark = needs("transformers")

FRAMEWORK = ["transformers.trainer", "accelerate"]


@pytest.fixture
def trainer(fork) -> Trainer:
    return fork("hugging_face.py", RANK="0", WORLD_SIZE="1")


def build(trainer: Trainer, folder, settings: str) -> None:
    trainer.do(f"t = build({str(folder)!r}, {settings})")


def test_steps_evaluations_and_saves_are_on_the_page(trainer, tmp_path) -> None:
    build(
        trainer, tmp_path, "max_steps=3, eval_strategy='steps', eval_steps=2,"
        "save_strategy='steps', save_steps=2, per_device_eval_batch_size=1"
    )  # fmt: skip
    assert watch(trainer, "t.train()") == [
        ("training", -1, ""),
        ("training", 1, ""),
        ("evaluating", 2, "eval"),
        ("evaluating", 2, "eval"),
        ("saving", 2, "checkpoint"),
        ("training", 2, ""),
        ("evaluating", 3, "eval"),  # at the end the Trainer does both once more
        ("evaluating", 3, "eval"),
        ("saving", 3, "checkpoint"),
    ]
    view = trainer.page()
    assert (view.step, view.phase) == (3, "")
    code, errors = trainer.end("")
    assert code == 0
    assert "watchtower-heartbeat:" not in errors


def test_what_all_ranks_must_have_in_common_is_declared(trainer, tmp_path) -> None:
    settings = "max_steps=1, gradient_accumulation_steps=2, learning_rate=3e-4, seed=7"
    build(trainer, tmp_path, settings)
    watch(trainer, "t.train()")
    assert trainer.page().declared.split("\n") == [
        "global_batch=4",
        "precision=fp32",
        "lr=0.0003",
        "seed=7",
        "max_steps=1",
    ]


def test_evaluations_and_saves_that_go_by_epochs_are_marked(trainer, tmp_path) -> None:
    build(
        trainer, tmp_path, "num_train_epochs=1, per_device_train_batch_size=8,"
        "eval_strategy='epoch', save_strategy='epoch'"
    )  # fmt: skip
    assert watch(trainer, "t.train()") == [
        ("training", -1, ""),
        ("evaluating", 1, "eval"),
        ("saving", 1, "checkpoint"),
    ]


def test_a_save_without_an_evaluation_is_marked(trainer, tmp_path) -> None:
    build(trainer, tmp_path, "max_steps=1, save_strategy='steps', save_steps=1")
    assert watch(trainer, "t.train()")[-1] == ("saving", 1, "checkpoint")


def test_an_evaluation_that_nobody_announced_is_marked_from_its_second_batch(
    trainer, tmp_path
) -> None:
    build(trainer, tmp_path, "max_steps=1, per_device_eval_batch_size=1")
    watch(trainer, "t.train()")
    for statement in ("t.evaluate()", "t.predict(t.eval_dataset)"):
        seen = watch(trainer, statement)
        assert seen == [("evaluating", 1, ""), ("evaluating", 1, "eval")]
        assert trainer.page().phase == ""


def test_a_failed_evaluation_leaves_its_phase_at_the_next_step(trainer, tmp_path) -> None:
    build(trainer, tmp_path, "max_steps=1")
    trainer.do("t.callback_handler.on_prediction_step(t.args, t.state, t.control)")
    assert trainer.page().phase == "eval"
    assert watch(trainer, "t.train()") == [("training", -1, "")]


def test_accumulated_gradients_make_one_step(trainer, tmp_path) -> None:
    build(trainer, tmp_path, "max_steps=2, gradient_accumulation_steps=2")
    seen = [step for _, step, _ in watch(trainer, "t.train()")]
    assert seen == [-1, -1, 1, 1]


def test_a_loss_that_is_logged_as_nan_is_noted(trainer, tmp_path) -> None:
    build(
        trainer, tmp_path, "max_steps=3, logging_steps=1, logging_nan_inf_filter=False, bad_from=2"
    )  # fmt: skip
    watch(trainer, "t.train()")
    view = trainer.page()
    assert view.first_nonfinite_step == 2
    assert view.last_nonfinite_step == 3


def test_the_trainers_own_filter_hides_a_nan_from_its_log_and_so_from_us(trainer, tmp_path) -> None:
    build(trainer, tmp_path, "max_steps=3, logging_steps=1, bad_from=2")
    watch(trainer, "t.train()")
    assert trainer.page().nonfinite_losses == 0


def test_the_optimizer_hook_is_silent_beside_the_callback_and_speaks_after_it(
    trainer, tmp_path
) -> None:
    trainer.do("from watchtower_heartbeat.torch import install; install()")
    build(trainer, tmp_path, "max_steps=3")
    # The first optimizer step comes before anybody knows of the callback.
    assert [step for _, step, _ in watch(trainer, "t.train()")] == [-1, 1, 2]
    trainer.do("p = torch.nn.Parameter(torch.ones(1)); o = torch.optim.SGD([p], lr=0.1)")
    # Its first step may still belong to the step before: only the second begins a new one.
    trainer.do("o.step(); o.step()")
    assert trainer.page().step == 4


def test_a_program_that_beats_itself_is_believed_and_phases_still_show(trainer, tmp_path) -> None:
    trainer.do("from watchtower_heartbeat import beat; beat(1000)")
    build(trainer, tmp_path, "max_steps=2, eval_strategy='steps', eval_steps=2")
    assert watch(trainer, "t.train()") == [
        ("training", 1000, ""),
        ("training", 1000, ""),
        ("evaluating", 1000, "eval"),
    ]


def test_a_callback_that_fails_changes_nothing_and_is_said_once(trainer, tmp_path) -> None:
    trainer.do("import watchtower_heartbeat.transformers as it; it.beats = None")
    ends = []
    for callbacks in ("[]", "None"):
        build(trainer, tmp_path, f"max_steps=3, callbacks={callbacks}")
        watch(trainer, "t.train()")
        trainer.send("print(t.state.global_step, t.model.layer.weight.sum().item().hex())")
        ends.append(trainer.line())
        assert trainer.line() == "done"
    assert ends[0] == ends[1]
    assert ends[0].startswith("3 ")
    code, errors = trainer.end("")
    assert code == 0
    assert errors.count("watchtower-heartbeat:") == 1
