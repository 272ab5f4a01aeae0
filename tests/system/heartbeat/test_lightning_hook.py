"""The callback for Lightning, with the real Trainer of either name, seen from another process."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.system.frameworks import needs
from tests.system.heartbeat.heartbeat_trainer import Trainer, watch

NAMES = ("lightning.pytorch", "pytorch_lightning")

pytestmark = needs("lightning")

FRAMEWORK = NAMES[:1]


@pytest.fixture
def start(train, fork, tmp_path):
    """Start a program with one of the two Lightnings and a Trainer `t` and a model `m`."""

    def begin(settings: str, name: str = NAMES[0], **environment: str) -> Trainer:
        if find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed: make test-torch")
        environment = {"RANK": "0", "LIGHTNING_NAME": name} | environment
        begin_program = fork if name in FRAMEWORK else train
        trainer = begin_program("lightnings.py", **environment)
        trainer.do(f"t, m = build({str(tmp_path)!r}, {settings})")
        return trainer

    return begin


@pytest.mark.parametrize("name", NAMES)
def test_steps_validations_and_checkpoints_are_on_the_page(start, name) -> None:
    trainer = start("save=2, val_check_interval=2, num_sanity_val_steps=1", name)
    assert watch(trainer, "t.fit(m, batches(4), batches(1))") == [
        ("sanity", -1, "eval"),
        ("training", -1, ""),
        ("training", 1, ""),
        ("saving", 2, "checkpoint"),
        ("validating", 2, "eval"),
        ("training", 2, ""),
        ("training", 3, ""),
        ("saving", 4, "checkpoint"),
        ("validating", 4, "eval"),
    ]
    view = trainer.page()
    assert (view.step, view.phase) == (4, "")
    code, errors = trainer.end("")
    assert code == 0
    assert "watchtower-heartbeat:" not in errors


def test_what_all_ranks_must_have_in_common_is_declared(start) -> None:
    trainer = start("max_steps=1, accumulate_grad_batches=2")
    watch(trainer, "t.fit(m, batches(2))")
    declared = dict(line.split("=") for line in trainer.page().declared.split("\n"))
    assert declared["precision"] == "32-true"
    assert declared["global_batch"] == "2"
    assert (declared["seed"], declared["max_steps"]) == ("0", "1")
    assert float(declared["lr"]) > 0


@pytest.mark.parametrize(
    ("call", "where"),
    [("validate", "validating"), ("test", "testing"), ("predict", "predicting")],
)
def test_runs_that_only_evaluate_are_in_the_eval_phase_and_leave_it(start, call, where) -> None:
    trainer = start("")
    assert watch(trainer, f"t.{call}(m, batches(2))") == [(where, -1, "eval")] * 2
    assert trainer.page().phase == ""


def test_batches_of_accumulated_gradients_beat_with_the_step_of_the_last_update(start) -> None:
    trainer = start("accumulate_grad_batches=2")
    assert [step for _, step, _ in watch(trainer, "t.fit(m, batches(5))")] == [-1, 0, 1, 1, 2]


def test_a_checkpoint_saved_after_the_run_is_not_marked(start, tmp_path) -> None:
    trainer = start("")
    watch(trainer, "t.fit(m, batches(1))")
    saving = f"t.save_checkpoint({str(tmp_path / 'x.ckpt')!r})"
    assert watch(trainer, saving) == [("saving", 1, "")]


def test_a_loss_that_is_nan_is_noted(start) -> None:
    trainer = start("bad_from=1")
    watch(trainer, "t.fit(m, batches(3))")
    view = trainer.page()
    assert (view.nonfinite_losses, view.first_nonfinite_step) == (2, 2)


def test_a_program_that_beats_itself_is_believed(start) -> None:
    trainer = start("")
    trainer.do("from watchtower_heartbeat import beat; beat(1000)")
    assert watch(trainer, "t.fit(m, batches(2))") == [("training", 1000, "")] * 2


def test_ranks_that_only_lightning_knows_are_named_before_their_first_step(train) -> None:
    trainer = train("lightning_ddp.py")
    pids = []
    while len(pids) < 2:
        word, _, rest = trainer.line().partition(" ")
        pids += [int(rest)] if word == "pid" else []
    views = sorted((trainer.page(pid) for pid in pids), key=lambda view: view.rank)
    seen = [(view.rank, view.world_size, view.local_rank, view.step) for view in views]
    assert seen == [(0, 2, 0, -1), (1, 2, 1, -1)]
    code, errors = trainer.end("\n")
    assert code == 0, errors


def test_a_callback_that_fails_changes_nothing_and_is_said_once(start, tmp_path) -> None:
    trainer = start("")
    trainer.do("import watchtower_heartbeat.lightning as it; it.beats = None")
    ends = []
    for callbacks in ("[]", "None"):
        trainer.do(f"t, m = build({str(tmp_path)!r}, callbacks={callbacks})")
        watch(trainer, "t.fit(m, batches(3))")
        trainer.send("print(t.global_step, m.layer.weight.sum().item().hex())")
        ends.append(trainer.line())
        assert trainer.line() == "done"
    assert ends[0] == ends[1]
    assert ends[0].startswith("3 ")
    code, errors = trainer.end("")
    assert code == 0
    assert errors.count("watchtower-heartbeat:") == 1
