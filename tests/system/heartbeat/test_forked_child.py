"""A forked child leaves the page to its parent, and gets one of its own only if it beats."""

from __future__ import annotations

from tests.system.heartbeat.heartbeat_trainer import open_pages


def test_a_forked_child_that_beats_does_not_overwrite_its_parents_step(train) -> None:
    trainer = train("forks.py", RANK="2")
    child = int(trainer.line())
    trainer.send("99")
    assert trainer.line() == "child done"
    assert trainer.page().step == 5
    assert trainer.page(child).step == 99
    assert trainer.page(child).pid == child


def test_a_forked_child_that_does_not_beat_has_no_page(train) -> None:
    trainer = train("forks.py", RANK="2")
    child = int(trainer.line())
    assert open_pages(child) == []
    assert len(open_pages(trainer.pid)) == 1


def test_a_forked_child_that_exits_in_order_says_nothing_on_its_parents_page(train) -> None:
    trainer = train(RANK="2")
    trainer.do("import os, sys; beat(5)")
    trainer.do("child = os.fork() or sys.exit(0); os.waitpid(child, 0)")
    view = trainer.page()
    assert (view.step, view.ended) == (5, "none")
