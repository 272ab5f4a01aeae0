"""Waits inside the process or node of a rank: words for the summary, one step of advice."""

import pytest

from tests.diagnosis.builders import a_case, a_rank, picture_of, ranks_in, with_rank
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.verdict import Cause, Domain

USER = " < refresh /job/main.py:31 < <module> /job/main.py:80"
RAY_GET = (
    "Worker.get_objects @ray/_private/worker.py:1007 < get @ray/_private/worker.py:3009"
    " < client_mode_hook.<locals>.decorator.<locals>.wrapper @ray/_private/client_mode_hook.py:134"
)
WAIT = "Condition.wait @threading.py:327"


def with_second(stack, **values):
    return with_rank(ranks_in(4), a_rank(2, stack + USER, **values))


def position_of(stack, **values):
    return picture_of(with_second(stack, **values)).by_rank[2]


@pytest.mark.parametrize(
    ("stack", "text", "advice"),
    [
        (f"{WAIT} < Queue.get @queue.py:171", "an item in a queue", "fills that queue"),
        (f"{WAIT} < Queue.put @queue.py:140", "room in a queue", "empties that queue"),
        (f"{WAIT} < Queue.join @queue.py:90", "every item of a queue is done", "task_done()"),
        (
            f"{WAIT} < ApplyResult.wait @multiprocessing/pool.py:765"
            " < ApplyResult.get @multiprocessing/pool.py:768"
            " < Pool.map @multiprocessing/pool.py:367",
            "the workers of a pool",
            "out of memory",
        ),
        ("_ModuleLock.acquire @importlib/_bootstrap.py:120", "another thread imports", "imports"),
        ("Handler.acquire @logging/__init__.py:927", "a logging handler", "writes a log line"),
        (f"{WAIT} < Event.wait @threading.py:629", "to be notified", "should call set()"),
        (f"{WAIT} < Future.result @concurrent/futures/_base.py:451", "a task of a pool", "task"),
        (RAY_GET, "the result of a task or an actor of Ray", "ray list tasks"),
    ],
)
def test_a_wait_inside_the_process_says_for_what(stack, text, advice):
    verdict = diagnose(a_case(with_second(stack, syscall="futex")))
    assert [item.rank for item in verdict.suspects] == [2]
    assert text in verdict.summary
    assert advice in verdict.next_steps[0]


def test_a_debuggers_prompt_is_told():
    stack = "Pdb.cmdloop @cmd.py:126 < Pdb.interaction @pdb.py:433"
    verdict = diagnose(a_case(with_second(stack, syscall="read", target="pipe:[7]")))
    assert "It is at the prompt of a debugger" in verdict.summary
    assert "breakpoint" in verdict.next_steps[0]


@pytest.mark.parametrize(
    ("syscall", "target", "advice"),
    [
        ("flock", "/job/vocab.lock", "`fuser -v /job/vocab.lock` on gpu-00"),
        ("fcntl", "/job/vocab.lock", "holds the lock on /job/vocab.lock"),
        ("wait4", "", "`ps -o pid,stat,wchan:20,etime,args --ppid 4002`"),
        ("write", "pipe:[7]", "the process that reads pipe:[7] has stopped"),
        ("read", "pipe:[7]", "no process writes into pipe:[7]"),
        ("recvfrom", "unix socket", "the other end of that socket of pid 4002 on gpu-00"),
    ],
)
def test_a_wait_in_the_kernel_says_where_to_look(syscall, target, advice):
    verdict = diagnose(a_case(with_second("hold /job/main.py:4", syscall=syscall, target=target)))
    assert advice in verdict.next_steps[0]


def test_what_the_users_frames_call_themselves_counts_for_nothing():
    assert position_of("get /job/queue.py:4", syscall="futex").wait_place is None


def test_a_rank_that_runs_waits_for_nothing():
    stack = f"{WAIT} < Queue.get @queue.py:171"
    assert position_of(stack, syscall="futex", state="R").wait_place is None


def test_a_target_cannot_break_out_of_the_advice():
    held = with_second("hold /job/main.py:4", syscall="flock", target="/a`{rank}\x1b[2J")
    step = diagnose(a_case(held)).next_steps[0]
    assert "/a'{rank}" in step
    assert "\x1b" not in step


def test_a_unix_socket_is_not_the_network():
    at = {"syscall": "read", "target": "unix socket"}
    verdict = diagnose(a_case(with_second("ask /job/helper.py:4", **at)))
    assert verdict.cause.value == "behind_collective"
    assert "`ss -xp`" in verdict.next_steps[0]


def test_a_result_of_ray_is_no_lock_and_nobody_is_called_for_it_without_a_known_address():
    verdict = diagnose(a_case(with_second(RAY_GET, syscall="futex")))
    assert (verdict.cause, verdict.domain) == (Cause.NETWORK_WAIT, Domain.UNKNOWN)
