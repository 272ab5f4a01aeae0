"""The spool of a process that is killed at any moment, and on a disk that is really full."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.delivery.spool import Spool
from tests.agent.agent_scene import Losses, spool_files
from tests.system.agent.agent_processes import clean_environment

WRITER = """
import sys, uuid
from agent.delivery.dump_queue import WaitingDump
from agent.clocks import Moment
from agent.delivery.spool import Spool
spool = Spool(sys.argv[1], lambda _: None, lambda _: False)
spool.open()
taken = Moment(boot_id="b", boottime_s=5.0, wall_s=1.8e9)
body = b'{"id": "' + b"x" * 200_000 + b'"}'
print("ready", flush=True)
while True:
    dump = WaitingDump(id=uuid.uuid4().hex, job="j", taken=taken, body=body)
    spool.put(dump)
    print(dump.id, flush=True)
"""


def test_killed_at_any_moment_it_holds_every_dump_it_said_it_holds(tmp_path: Path) -> None:
    losses = Losses()
    for number in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.005 * number)  # another moment each time; any is as good
        writer.kill()
        lines = writer.stdout.read().splitlines()
        writer.stdout.close()
        writer.wait()
        spool = Spool(str(tmp_path), losses.count, lambda _: False)
        spool.open()
        whole = {dump_id for dump_id in lines if len(dump_id) == 32}
        assert whole <= spool.ids()
        while (dump := spool.first()) is not None:
            assert len(dump.body) == 200_010
            spool.remove(dump.id)
        assert losses == {}
        assert spool_files(spool) == []
        spool.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: run it as root")
def test_a_full_disk_is_said_and_dumps_wait_in_memory(tmp_path: Path) -> None:
    program = """
import sys, threading
from agent.delivery.dump_queue import DumpQueue, WaitingDump
from agent.clocks import Moment
from agent.delivery.spool import SpoolThread
queue = DumpQueue(print)
spooler = SpoolThread(sys.argv[1], queue, print)
spooler.start(lambda: None)
taken = Moment(boot_id="b", boottime_s=5.0, wall_s=1.8e9)
for number in range(4):
    queue.put(WaitingDump(id=f"{number:032d}", job="j", taken=taken, body=b"x" * 400_000))
    spooler.flush(20)
print(len(spooler.ids()), len(queue.all()), spooler.trouble(), flush=True)
for number in range(4):
    queue.remove(f"{number:032d}")
spooler.flush(20)
queue.put(WaitingDump(id="f" * 32, job="j", taken=taken, body=b"x" * 400_000))
spooler.flush(20)
print(len(spooler.ids()), repr(spooler.trouble()), flush=True)
"""
    command = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", str(tmp_path), sys.executable, program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    full, again = done.stdout.splitlines()
    assert full.startswith("2 4 dumps wait in memory only")
    assert "No space left on device" in full
    assert again == "1 ''"
