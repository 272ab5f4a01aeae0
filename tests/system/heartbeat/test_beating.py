"""A rank seen from another process: when its page appears and what it says."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time

import pytest
from watchtower_heartbeat.layout import MEMFD_NAME
from watchtower_heartbeat.page import read_page

from tests.system.heartbeat.heartbeat_trainer import (
    DEADLINE_S,
    Trainer,
    a_clean_environment,
    open_pages,
)

FILL_STDERR = """
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    pass
"""


def test_a_process_with_a_rank_has_a_page_before_its_first_beat(train) -> None:
    trainer = train(RANK="3", WORLD_SIZE="8", LOCAL_RANK="1", WATCHTOWER_JOB="llama")
    view = trainer.page()
    assert (view.step, view.beat_ns) == (-1, 0)
    assert (view.rank, view.world_size, view.local_rank, view.job) == (3, 8, 1, "llama")


def test_a_process_without_a_rank_has_a_page_from_its_first_beat(train) -> None:
    trainer = train()
    assert open_pages(trainer.pid) == []
    trainer.do("beat(0)")
    view = trainer.page()
    assert (view.step, view.rank, view.world_size, view.local_rank) == (0, -1, -1, -1)


def test_a_beat_shows_its_step_and_the_time_of_the_shared_clock(train) -> None:
    trainer = train(RANK="0")
    before = time.monotonic_ns()
    trainer.do("beat(41)")
    trainer.do("beat(42)")
    view = trainer.page()
    assert view.step == 42
    assert before < view.beat_ns < time.monotonic_ns()


def test_the_page_names_its_process_by_pid_and_start_time(train) -> None:
    trainer = train(RANK="0")
    view = trainer.page()
    with open(f"/proc/{trainer.pid}/stat") as stat:
        start_time = int(stat.read().rpartition(")")[2].split()[19])
    assert (view.pid, view.start_time_ticks) == (trainer.pid, start_time)


def test_the_process_holds_exactly_one_descriptor_and_executed_children_none(train) -> None:
    trainer = train(RANK="0")
    trainer.do("import subprocess; child = subprocess.Popen(['sleep', '60'], close_fds=False)")
    child = int(trainer.ask("child.pid"))
    try:
        assert len(open_pages(trainer.pid)) == 1
        assert open_pages(child) == []
    finally:
        os.kill(child, 9)


def test_nobody_can_cut_the_page_short_under_its_writer(train) -> None:
    trainer = train(RANK="0")
    (link,) = (
        f"/proc/{trainer.pid}/fd/{name}"
        for name in os.listdir(f"/proc/{trainer.pid}/fd")
        if "watchtower" in os.readlink(f"/proc/{trainer.pid}/fd/{name}")
    )
    with pytest.raises(PermissionError):
        os.truncate(link, 0)
    trainer.do("beat(1)")


def test_a_python_without_memfd_create_makes_the_system_call_itself(train) -> None:
    trainer = train("lacks_memfd_create.py", RANK="0")
    trainer.do("beat(9)")
    assert trainer.page().step == 9


def test_an_explicit_heartbeat_names_the_rank_and_shares_the_one_page(train) -> None:
    trainer = train(RANK="0", WORLD_SIZE="4")
    trainer.do("mine = Heartbeat(job='ray', rank=3)")
    trainer.do("mine.beat(7)")
    view = trainer.page()
    assert (view.job, view.rank, view.world_size, view.step) == ("ray", 3, 4, 7)
    trainer.do("beat(8)")
    assert trainer.page().step == 8


def test_an_explicit_heartbeat_makes_the_page_at_once(train) -> None:
    trainer = train()
    trainer.do("Heartbeat(job='ray', rank=3, world_size=4, local_rank=1)")
    view = trainer.page()
    assert (view.rank, view.world_size, view.local_rank, view.step) == (3, 4, 1, -1)


def test_phases_nest_and_the_outer_one_comes_back_with_its_own_begin(train) -> None:
    trainer = train(RANK="0")
    trainer.do("outer = phase('eval'); outer.__enter__()")
    outer = trainer.page()
    trainer.do("inner = phase('checkpoint'); inner.__enter__()")
    inner = trainer.page()
    trainer.do("inner.__exit__(None, None, None)")
    again = trainer.page()
    trainer.do("outer.__exit__(None, None, None)")
    after = trainer.page()
    assert [view.phase for view in (outer, inner, again, after)] == [
        "eval",
        "checkpoint",
        "eval",
        "",
    ]
    assert again.phase_since_ns == outer.phase_since_ns < inner.phase_since_ns
    assert after.phase_since_ns == 0


def test_a_phase_ends_by_an_exception_and_lets_it_through(train) -> None:
    trainer = train(RANK="0")
    trainer.do(
        "exec('try:\\n with phase(\"eval\"):\\n  1/0\\nexcept ZeroDivisionError: caught = True')"
    )
    trainer.do("assert caught")
    assert trainer.page().phase == ""


def test_phases_of_two_threads_may_end_in_any_order(train) -> None:
    trainer = train(RANK="0")
    trainer.do("one, two = phase('checkpoint'), phase('eval')")
    trainer.do("one.__enter__(); two.__enter__(); one.__exit__(None, None, None)")
    assert trainer.page().phase == "eval"
    trainer.do("two.__exit__(None, None, None)")
    assert trainer.page().phase == ""


def test_a_phase_entered_before_the_page_exists_is_shown_when_it_does(train) -> None:
    trainer = train()
    trainer.do("p = phase('warmup'); p.__enter__()")
    assert open_pages(trainer.pid) == []
    trainer.do("beat(0)")
    assert trainer.page().phase == "warmup"


@pytest.mark.parametrize("loss", ["float('nan')", "float('inf')", "-float('inf')"])
def test_a_loss_that_is_not_finite_is_counted_with_its_first_and_last_step(train, loss) -> None:
    trainer = train(RANK="0")
    trainer.do("beat(1, loss=0.5)")
    assert trainer.page().nonfinite_losses == 0
    trainer.do(f"beat(2, loss={loss}); beat(3, 1.0); beat(4, {loss}); beat(5, 1)")
    view = trainer.page()
    assert (view.nonfinite_losses, view.first_nonfinite_step, view.last_nonfinite_step) == (2, 2, 4)
    assert view.step == 5


def test_a_loss_on_a_device_is_left_alone_and_that_is_said_once(train) -> None:
    trainer = train(RANK="0")
    trainer.do("class OnGpu: device = 'cuda:0'; __float__ = lambda self: 1 / 0")
    trainer.do("beat(1, loss=OnGpu()); beat(2, loss=OnGpu())")
    assert trainer.page().step == 2
    _, errors = trainer.end()
    assert errors.count("watchtower-heartbeat:") == 1
    assert "pass a float" in errors


@pytest.mark.parametrize("step", ["'x'", "None", "2**70", "float('nan')"])
def test_a_step_that_is_no_number_never_raises_and_is_said_once(train, step: str) -> None:
    trainer = train(RANK="0")
    trainer.do(f"beat(3); beat({step}); beat({step})")
    assert trainer.page().step == 3
    code, errors = trainer.end()
    assert code == 0
    assert errors.count("watchtower-heartbeat:") == 1


def test_a_step_that_counts_like_a_number_is_taken(train) -> None:
    trainer = train(RANK="0")
    trainer.do("beat(7.0)")
    assert trainer.page().step == 7


def test_switched_off_there_is_no_page_and_no_complaint(train) -> None:
    trainer = train(RANK="0", WATCHTOWER_HEARTBEAT="off")
    trainer.do("beat(1, loss=float('nan')); Heartbeat(rank=3)")
    trainer.do("p = phase('eval'); p.__enter__(); p.__exit__(None, None, None)")
    assert open_pages(trainer.pid) == []
    assert trainer.end() == (0, "")


def test_without_descriptors_left_training_goes_on_with_one_line_said(train) -> None:
    trainer = train()
    trainer.do("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))")
    trainer.do("beat(1); beat(2); Heartbeat(rank=1); beat(3, loss=float('nan'))")
    code, errors = trainer.end()
    assert code == 0
    assert errors.count("\n") == 1
    assert "no page" in errors


def test_asking_for_any_tracer_is_silent_whether_or_not_the_kernel_knows_yama(train) -> None:
    trainer = train(RANK="0", WATCHTOWER_PTRACE="any")
    trainer.do("import os; child = os.fork() or os._exit(0); os.waitpid(child, 0)")
    trainer.do("beat(1)")
    assert trainer.page().step == 1
    assert trainer.end() == (0, "")


def test_the_page_outlives_its_process_for_whoever_holds_it(train) -> None:
    trainer: Trainer = train(RANK="5")
    trainer.do("beat(12)")
    descriptor = trainer.open_page()
    trainer.stop()
    assert read_page(descriptor).step == 12
    os.close(descriptor)


def test_importing_the_client_loads_nothing_that_is_slow() -> None:
    # Without site, because .pth files of this machine may import what they like.
    source = os.path.dirname(os.path.dirname(sys.modules["watchtower_heartbeat"].__file__ or ""))
    program = (
        f"import sys; sys.path.insert(0, {source!r}); import watchtower_heartbeat;"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        env=a_clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    slow = {"ctypes", "dataclasses", "enum", "inspect", "re", "socket", "struct", "subprocess"}
    slow |= {"threading", "typing", "collections", "contextlib", "logging", "json", "torch"}
    assert not slow & set(done.stdout.split())


def test_a_pipe_that_nobody_reads_stops_no_program_that_has_something_to_say(train) -> None:
    trainer = train(RANK="0")
    trainer.do("import os; os.set_blocking(2, False)")
    trainer.do(f"exec({FILL_STDERR!r}, globals())")
    trainer.do("os.set_blocking(2, True)")
    trainer.do("beat('no step')")
    trainer.do("beat(1)")
    assert trainer.page().step == 1


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


def test_the_page_is_a_private_file_that_names_its_process(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    trainer.do("beat(6)")
    (path,) = tmp_path.iterdir()
    assert path.name.startswith(f"{MEMFD_NAME}.")
    assert f".{trainer.pid}." in path.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.open("rb") as file:
        view = read_page(file.fileno())
    assert (view.rank, view.step) == (3, 6)
    assert open_pages(trainer.pid) == []


def test_the_file_goes_at_the_end_and_whoever_holds_it_has_the_last_words(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    (path,) = tmp_path.iterdir()
    with path.open("rb") as file:
        trainer.end("raise ValueError('gone')")
        assert list(tmp_path.iterdir()) == []
        assert read_page(file.fileno()).exception_message == "gone"


def test_a_killed_process_leaves_its_file(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    trainer.stop()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_forked_child_does_not_remove_its_parents_file(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    trainer.do("import os, sys; child = os.fork() or sys.exit(0); os.waitpid(child, 0)")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_relative_directory_is_found_again_after_the_program_moved(train, tmp_path) -> None:
    relative = os.path.relpath(tmp_path)
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=relative)
    assert trainer.end("import os; os.chdir('/')")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_said_once_and_training_goes_on(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path / "missing"))
    trainer.do("beat(1); beat(2)")
    code, errors = trainer.end()
    assert code == 0
    assert errors.count("\n") == 1
    assert "missing" in errors
    assert not (tmp_path / "missing").exists()


NO_ROOM = """
import os, resource, watchtower_heartbeat.record_socket as it
it._check_threads()
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(64011, 64011, 64011)
    os.setresuid(64011, 64011, 64011)
resource.setrlimit(resource.RLIMIT_NPROC, (5, 5))
try:
    it._check_threads()
except OSError as error:
    print(error)
"""


def test_without_room_for_its_threads_there_is_no_server_that_would_abort_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_ROOM],
        env=a_clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.startswith("cannot start")
