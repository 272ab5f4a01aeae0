"""The drills' training program, which times its own steps. harm.py runs a process for each rank.

It prints "half" after half of its steps, and writes the length of each step (seconds) to the file
named by --times. It ends with an exit code of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import watchtower.drills

sys.path.insert(0, str(Path(watchtower.drills.__file__).with_name("programs")))

from plan import read_plan
from report import emit
from train import RingTrainer

EXIT_CODE = 7


class TimedTrainer(RingTrainer):
    def __init__(self, plan):
        super().__init__(plan)
        self.ends = []

    def look_after(self, step):
        super().look_after(step)
        self.ends.append(time.perf_counter())
        if step == self.plan.steps // 2:
            emit("half", step=step)


def main():
    plan_path, times_path = sys.argv[1:]
    trainer = TimedTrainer(read_plan(plan_path))
    trainer.run()
    gaps = [after - before for before, after in zip(trainer.ends, trainer.ends[1:], strict=False)]
    Path(times_path).write_text(json.dumps(gaps))
    sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
