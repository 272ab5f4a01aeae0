"""A training program without heartbeats never imports the client."""

import subprocess
import sys

from watchtower.drills.launching import PROGRAMS


def test_a_job_without_heartbeats_trains_and_never_imports_the_client(tmp_path):
    """In a process of its own: the client is installed beside these tests."""
    code = (
        "import sys; from plan import Plan; from trainer import Trainer\n"
        "class One(Trainer):\n"
        "    def train_step(self, batch, is_last): return 0.0\n"
        "    def batches(self): return self.loader\n"
        "for beats in (False, True):\n"
        "    plan = Plan(beats=beats, step_s=0.001, batches=3)\n"
        "    trainer = One(plan)\n"
        "    trainer.train()\n"
        "    print(trainer.loader.cursor, 'watchtower_heartbeat' in sys.modules)\n"
    )
    environment = {"RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": str(PROGRAMS)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("step ")]
    assert lines == ["3 False", "3 True"]
