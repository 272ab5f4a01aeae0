"""The spool of a process that is killed at any moment."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

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
