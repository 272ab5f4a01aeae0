"""How a process ended, as far as it could still say so itself."""

from __future__ import annotations

import os
import signal

import pytest
from watchtower_heartbeat.page import read_page


def test_a_program_that_runs_to_its_end_has_finished(last_page) -> None:
    view = last_page("beat(3)", "")
    assert (view.ended, view.step) == ("finished", 3)
    assert view.ended_ns > view.beat_ns


def test_an_exception_is_noted_with_its_type_and_its_lines(last_page) -> None:
    view = last_page("raise ValueError('bad shard 17\\n\\n  and a lot more')")
    assert (view.ended, view.exception_type) == ("exception", "ValueError")
    assert view.exception_message == "bad shard 17\nand a lot more"


def test_the_type_of_an_exception_carries_its_module(last_page) -> None:
    view = last_page("import json; json.loads('{')")
    assert view.exception_type == "json.decoder.JSONDecodeError"


def test_a_hook_that_was_there_before_is_still_called(train) -> None:
    trainer = train()
    trainer.do("import sys; sys.excepthook = lambda *what: print('mine', flush=True)")
    trainer.do("beat(1)")
    descriptor = trainer.open_page()
    trainer.send("raise ValueError('x')")
    assert trainer.line() == "mine"
    trainer.end()
    assert read_page(descriptor).ended == "exception"
    os.close(descriptor)


def test_an_exception_is_noted_at_exit_when_the_program_replaced_our_hook(last_page) -> None:
    view = last_page("import sys; sys.excepthook = lambda *what: None", "raise KeyError('lost')")
    assert (view.ended, view.exception_type) == ("exception", "KeyError")
    assert view.exception_message == "'lost'"


def test_an_exception_is_noted_before_a_slow_hook_or_thread_holds_up_the_end(train) -> None:
    trainer = train(RANK="0")
    trainer.do("import threading, os; out, into = os.pipe()")
    trainer.do("t = threading.Thread(target=os.read, args=(out, 1)); t.start()")
    descriptor = trainer.open_page()
    trainer.send("raise ValueError('x')")
    assert trainer.process.stderr is not None
    while b"ValueError: x" not in trainer.process.stderr.readline():
        pass
    assert trainer.process.poll() is None
    assert read_page(descriptor).ended == "exception"
    os.close(descriptor)


def test_sys_exit_is_like_an_orderly_end_because_no_hook_is_called(last_page) -> None:
    view = last_page("import sys; sys.exit(3)")
    assert (view.ended, view.exit_code) == ("finished", -1)


def test_an_exit_that_reaches_the_hook_is_noted_with_its_code(last_page) -> None:
    view = last_page("import sys", "sys.excepthook(SystemExit, SystemExit(3), None)")
    assert (view.ended, view.exit_code) == ("exit", 3)


@pytest.mark.parametrize("ending", ["os._exit(3)", "os.kill(os.getpid(), 15)", "os.abort()"])
def test_an_end_that_no_hook_hears_leaves_no_note(last_page, ending: str) -> None:
    view = last_page("import os; beat(8)", ending)
    assert (view.ended, view.ended_ns, view.step) == ("none", 0, 8)


def test_an_interrupt_is_an_exception_without_a_message(train) -> None:
    trainer = train(RANK="0")
    descriptor = trainer.open_page()
    trainer.do("")
    trainer.process.send_signal(signal.SIGINT)
    trainer.process.wait(20)
    view = read_page(descriptor)
    os.close(descriptor)
    assert (view.ended, view.exception_type) == ("exception", "KeyboardInterrupt")


def test_a_spawned_worker_that_failed_does_not_claim_to_have_finished(train) -> None:
    trainer = train("spawns.py")
    worker = int(trainer.line())
    descriptor = trainer.open_page(worker)
    trainer.send("fail")
    assert trainer.line() == "joined"
    view = read_page(descriptor)
    os.close(descriptor)
    assert (view.step, view.ended) == (1, "none")
