"""Launchers that end before they have ranks: they are reported if a reason is known."""

from __future__ import annotations

import subprocess
import sys

from agent.procfs import Proc
from agent.watching.waiting_launchers import KEPT_S, WaitingLaunchers
from watchtower.wire.observations import Observation
from watchtower.wire.report import WaitingLauncher


class Scene:
    """One launcher, which is a real process."""

    def __init__(self, endpoint: str = "127.0.0.1:29500") -> None:
        words = [sys.executable, "-c", "import time; time.sleep(60)"]
        self.process = subprocess.Popen(words)
        proc = Proc("/")
        stat = proc.stat(self.process.pid)
        assert stat is not None
        self.launcher = WaitingLauncher(
            job="j",
            launcher="torchrun",
            pid=self.process.pid,
            start_time=stat.start_time,
            waits_s=5.0,
            nodes=2,
            most_nodes=2,
            endpoint=endpoint,
        )
        self.waiting = [self.launcher]
        self.launchers = WaitingLaunchers(proc, lambda: self.waiting)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.waiting = []

    def report(self, now: float, text: str = "") -> tuple[WaitingLauncher, ...]:
        seen = Observation(
            source="listeners",
            subject=f"pid:{self.launcher.pid}",
            name="port_in_use",
            age_s=1.0,
            text=text,
            pid=self.launcher.pid,
        )
        return self.launchers.report([seen] if text else [], now)


def test_a_launcher_that_ends_is_reported_with_the_process_at_its_port():
    scene = Scene()
    scene.launchers.update(100.0)
    assert scene.report(100.0) == (scene.launcher,)
    assert list(scene.launchers.ends(100.0)) == []
    scene.end()
    scene.launchers.update(101.0)
    (ended,) = scene.launchers.ends(101.0)
    assert (ended.pid, set(ended.find_ports())) == (scene.launcher.pid, {29500})
    assert scene.report(101.0) == (), "why it has ended is not known"
    (found,) = scene.report(101.0, "pid 7 listens at 127.0.0.1:29500")
    assert (found.ended, found.waits_s) == ("pid 7 listens at 127.0.0.1:29500", 5.0)
    scene.launchers.update(102.0 + KEPT_S)
    assert scene.report(102.0 + KEPT_S, "pid 7 listens") == ()


def test_a_launcher_whose_ranks_have_started_has_not_ended():
    scene = Scene()
    scene.launchers.update(100.0)
    scene.waiting = []
    scene.launchers.update(101.0)
    assert list(scene.launchers.ends(101.0)) == []
    scene.end()


def test_a_port_of_another_node_is_not_read_on_this_one():
    scene = Scene("192.0.2.77:29500")
    scene.launchers.update(100.0)
    scene.end()
    scene.launchers.update(101.0)
    assert list(scene.launchers.ends(101.0)) == []
