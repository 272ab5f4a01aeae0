"""The example of docs/heartbeat-page.md, a trainer in C, compiled, and read as the agent does."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from watchtower_heartbeat.page import read_page

from agent.procfs import Proc
from agent.ranks.pages import find_page
from agent.watching.rank import Heartbeat, started_ns
from tests.system.heartbeat.heartbeat_trainer import PROGRAMS, Trainer

COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "")

pytestmark = pytest.mark.skipif(not COMPILER, reason="no C compiler: apt install gcc libc6-dev")


@pytest.fixture(scope="module")
def binary(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("c") / "trainer"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    source = PROGRAMS / "trainer.c"
    subprocess.run([COMPILER, *flags, source, "-o", target], check=True, timeout=100)
    return target


@pytest.fixture
def trainer(train, binary) -> Trainer:
    """A rank written in C."""
    return train(str(binary), RANK="3", WORLD_SIZE="8", LOCAL_RANK="1", WATCHTOWER_JOB="llama")


def test_a_page_in_c_says_who_it_is_before_the_first_beat(trainer) -> None:
    view = trainer.page()
    assert (view.pid, view.step, view.beat_ns) == (trainer.pid, -1, 0)
    assert (view.job, view.rank, view.world_size, view.local_rank) == ("llama", 3, 8, 1)
    unset = (view.phase, view.nonfinite_losses, view.first_nonfinite_step, view.exit_code)
    assert (*unset, view.ended, view.torn) == ("", 0, -1, -1, "none", False)


def test_the_agent_takes_it_for_the_process_s_own_and_reads_its_beats(trainer) -> None:
    proc = Proc()
    start_time = int(Path(f"/proc/{trainer.pid}/stat").read_text().rpartition(")")[2].split()[19])
    page = find_page(proc, trainer.pid, start_time).page
    assert page is not None
    heartbeat = Heartbeat(page, started_ns(start_time))
    trainer.do("beat 41")
    heartbeat.read()
    heartbeat.beat(time.monotonic_ns())
    before = time.monotonic_ns()
    trainer.do("beat 45")
    trainer.do("phase checkpoint")
    trainer.do("loss 45 nan")
    heartbeat.read()
    beat = heartbeat.beat(time.monotonic_ns())
    assert beat is not None
    assert (beat.step, beat.advanced, beat.phase, beat.loss_is_bad) == (45, 4, "checkpoint", True)
    assert 0 <= beat.age_s <= (time.monotonic_ns() - before) / 1e9
    assert 0 <= beat.phase_age_s <= beat.age_s


def test_phases_end_and_losses_are_counted(trainer) -> None:
    trainer.do("phase eval")
    trainer.do("phase")
    for line in ("loss 1 0.5", "loss 2 inf", "loss 3 1e3", "loss 9 -nan"):
        trainer.do(line)
    view = trainer.page()
    assert (view.phase, view.phase_since_ns) == ("", 0)
    assert (view.nonfinite_losses, view.first_nonfinite_step, view.last_nonfinite_step) == (2, 2, 9)


def test_last_words_in_c_are_read_after_the_process_is_gone(trainer) -> None:
    descriptor = trainer.open_page()
    trainer.do("end 3 7")
    assert trainer.end("")[0] == 7
    view = read_page(descriptor)
    os.close(descriptor)
    assert (view.ended, view.exit_code) == ("exit", 7)
    assert view.ended_ns > 0


def test_nobody_can_cut_its_page_short(trainer) -> None:
    links = [f"/proc/{trainer.pid}/fd/{n}" for n in os.listdir(f"/proc/{trainer.pid}/fd")]
    (link,) = (link for link in links if "watchtower" in os.readlink(link))
    with pytest.raises(PermissionError):
        os.truncate(link, 0)
    trainer.do("beat 1")
    assert trainer.page().step == 1
