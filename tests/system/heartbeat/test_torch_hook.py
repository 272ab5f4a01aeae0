"""The hook into torch's optimizers, on real optimizers in a real process, seen from outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.system.frameworks import needs
from tests.system.heartbeat.heartbeat_trainer import Trainer, a_clean_environment, open_pages

pytestmark = needs("torch")

FRAMEWORK = ["torch", "torch._dynamo"]

MODEL = """
import torch; from watchtower_heartbeat.torch import install; install()
def model(kind=torch.optim.SGD, **more): torch.manual_seed(0); m = torch.nn.Linear(3, 1);\
 return m, kind(m.parameters(), lr=0.1, **more)
def loss(m): return (m(torch.ones(4, 3)) ** 2).mean()
def step(m, o): o.zero_grad(); loss(m).backward(); o.step()
m, o = model()
"""


@pytest.fixture
def model(fork) -> Trainer:
    """A rank with a model `m`, its optimizer `o`, and the hook installed."""
    return started(fork, RANK="0")


def started(fork, **environment: str) -> Trainer:
    trainer = fork("bare.py", **environment)
    trainer.do(f"exec({MODEL!r}, globals())")
    return trainer


def steps(trainer: Trainer, statement: str) -> int:
    """The content of the page after a statement."""
    trainer.do(statement)
    return trainer.page().step


def test_every_optimizer_step_is_a_beat(model) -> None:
    assert model.page().step == -1
    assert [steps(model, "step(m, o)") for _ in range(3)] == [1, 2, 3]
    assert model.end("") == (0, "")


def test_importing_the_hook_imports_no_torch() -> None:
    program = "import sys, watchtower_heartbeat.torch; print('torch' in sys.modules)"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=a_clean_environment()) == b"False\n"


def test_installing_again_counts_no_step_twice(model) -> None:
    model.do("install(); install()")
    assert steps(model, "step(m, o); step(m, o)") == 2


def test_without_a_rank_the_first_optimizer_step_makes_the_page(fork) -> None:
    trainer = started(fork)
    assert open_pages(trainer.pid) == []
    assert steps(trainer, "step(m, o)") == 1


def test_gradient_accumulation_is_one_step_for_many_micro_steps(model) -> None:
    model.do("for _ in range(8): loss(m).backward()")
    assert model.page().step == -1
    assert steps(model, "o.step()") == 1


def test_the_two_optimizers_of_a_gan_count_as_one_step(model) -> None:
    model.do("m2, o2 = model()")
    assert steps(model, "for _ in range(5): step(m, o); step(m2, o2)") == 5


def test_an_optimizer_that_steps_more_often_than_the_other_counts(model) -> None:
    model.do("m2, o2 = model()")
    model.do("def critics(): [step(m, o) for _ in range(4)]")
    assert steps(model, "critics(); step(m2, o2); critics(); step(m2, o2)") == 8


def test_an_optimizer_that_takes_over_goes_on_with_the_count(model) -> None:
    model.do("m2, o2 = model()")
    assert steps(model, "for _ in range(3): step(m, o)") == 3
    assert steps(model, "for _ in range(4): step(m2, o2)") == 6


def test_one_optimizer_per_parameter_inside_backward_counts_as_one_step(model) -> None:
    model.do("each = {p: torch.optim.SGD([p], lr=0.1) for p in m.parameters()}")
    model.do("def update(p): each[p].step(); each[p].zero_grad()")
    model.do("for p in m.parameters(): p.register_post_accumulate_grad_hook(update)")
    assert steps(model, "for _ in range(5): loss(m).backward()") == 5


def test_lbfgs_is_one_step_however_often_it_asks_for_the_loss(model) -> None:
    model.do("m, o = model(torch.optim.LBFGS, max_iter=5); asked = []")
    model.do("def closure(): asked.append(1); o.zero_grad(); l = loss(m); l.backward(); return l")
    assert steps(model, "o.step(closure)") == 1
    model.do("assert len(asked) > 2")


def test_a_step_that_the_gradient_scaler_skips_is_no_beat_and_the_next_one_is(model) -> None:
    model.do("scaler = torch.amp.GradScaler('cpu', init_scale=4.0)")
    model.do(
        "def scaled(bad): o.zero_grad(); scaler.scale(loss(m) * bad).backward();"
        " scaler.step(o); scaler.update()"
    )
    assert steps(model, "scaled(1.0)") == 1
    assert steps(model, "scaled(float('inf'))") == 1
    model.do("assert scaler.get_scale() == 2.0")
    assert steps(model, "scaled(1.0)") == 2


def test_a_program_that_beats_itself_is_believed_and_the_hook_is_silent(model) -> None:
    model.do("from watchtower_heartbeat import beat")
    assert steps(model, "step(m, o); beat(100)") == 100
    assert steps(model, "step(m, o)") == 100
    assert steps(model, "beat(101); step(m, o); step(m, o)") == 101


def test_a_program_that_beat_before_the_hook_is_believed(model) -> None:
    assert steps(model, "from watchtower_heartbeat import beat; beat(0); step(m, o)") == 0


def test_a_forked_child_that_trains_counts_on_a_page_of_its_own(model) -> None:
    model.do("import os; step(m, o); from watchtower_heartbeat import beat; beat(7)")
    model.do("ours, theirs = os.pipe(); back, forth = os.pipe()")
    model.do(
        "child = os.fork() or (os.close(theirs), step(m, o), os.write(forth, b'x'),"
        " os.read(ours, 1), os._exit(0))"  # which ends when its parent has ended
    )
    model.do("assert os.read(back, 1) == b'x'")
    assert model.page(int(model.ask("child"))).step == 2
    assert model.page().step == 7


WEIGHT = "m.weight.sum().item().hex()"
COMPILED = "run = torch.compile(lambda: {step}, backend='eager', fullgraph={whole})"


def test_compiled_steps_of_torchs_own_optimizers_are_counted_and_compiled_once(model) -> None:
    model.do("m, o = model(torch.optim.AdamW); m2, o2 = model(torch.optim.AdamW)")
    model.do("loss(m).backward(); loss(m2).backward()")
    model.do(COMPILED.format(step="(o.step(), o2.step())", whole=False))
    assert steps(model, "for _ in range(20): run()") == 20
    _, errors = model.end("")
    assert "recompile" not in errors


def test_a_whole_graph_of_somebody_elses_optimizer_stays_whole_and_is_not_counted(model) -> None:
    own = """
class Own(torch.optim.Optimizer):
    def __init__(self, parameters, lr): super().__init__(parameters, {'lr': lr})
    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group['params']: p.sub_(p.grad * group['lr'])
"""
    model.do(f"exec({own!r}, globals()); m, o = model(Own); loss(m).backward()")
    model.do(COMPILED.format(step="o.step()", whole=True))
    assert steps(model, "before = m.weight.sum().item(); run(); run()") == -1
    model.do("assert m.weight.sum().item() != before")
    assert steps(model, "o.step()") == 1


def test_training_gives_the_same_when_the_page_cannot_be_made(train) -> None:
    hooked, plain = train("bare.py"), train("bare.py")
    hooked.do(f"exec({MODEL!r}, globals())")
    without = MODEL.replace("install()", "")
    plain.do(f"exec({without!r}, globals())")
    for trainer in (hooked, plain):
        trainer.do("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))")
        trainer.do("for _ in range(20): step(m, o)")
    assert hooked.ask(WEIGHT) == plain.ask(WEIGHT)
    code, errors = hooked.end("")
    assert (code, errors.count("watchtower-heartbeat: no page")) == (0, 1)
    assert plain.end("")[0] == 0


def test_training_goes_on_when_the_counting_itself_fails(model) -> None:
    model.do("import watchtower_heartbeat.hooks as h; h.beats = h.HookBeats.beat = None")
    model.do("step(m, o); step(m, o)")
    code, errors = model.end()
    assert code == 0
    assert errors.count("watchtower-heartbeat:") == 1


def test_a_torch_that_cannot_be_imported_is_said_once(train, tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('broken build')")
    trainer = train("bare.py", PYTHONPATH=str(tmp_path))
    trainer.do("from watchtower_heartbeat.torch import install; install(); install()")
    code, errors = trainer.end()
    assert (code, errors.count("\n")) == (0, 1)
    assert "broken build" in errors
