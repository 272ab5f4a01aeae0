"""A verdict from the evidence of a whole cluster: seconds on one core, and memory.

Imagined jobs of tensor, data and pipeline parallelism, one rank asleep, records of three groups and
a pipeline for each rank. Each size runs in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

from tests.synthesis.evidence import Maker, Recording
from tests.synthesis.faults import LOADING, imagine_cut
from tests.synthesis.layout import Layout
from tests.synthesis.program import run
from watchtower.core.diagnosis.diagnosis import diagnose

LAYOUTS = {
    "1024": Layout(tensor=8, data=16, pipeline=8),
    "16384": Layout(tensor=8, data=128, pipeline=16),
    "131072": Layout(tensor=8, data=1024, pipeline=16),
}
LIMITS_S = {"1024": 1.0, "16384": 1.0, "131072": 10.0}


def measure(name: str, kept: bool, cut: bool) -> tuple[float, float, str]:
    """Give seconds, megabytes by which the diagnosis raised the peak, and the verdict."""
    layout = LAYOUTS[name]
    recording = Recording(kept=kept)
    if cut:
        case = imagine_cut(layout, recording).case
    else:
        rank = layout.size // 3
        case = Maker(layout, recording).make(run(layout, stops={rank: 1}), {rank: LOADING})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    said = diagnose(case)
    took_s = time.process_time() - began
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return took_s, added, f"{said.cause.value} of {[each.rank for each in said.suspects]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(LAYOUTS), help="comma-separated")
    parser.add_argument("--check", action="store_true", help="exit 1 when one is over its limit")
    args = parser.parse_args()
    slow = False
    print(f"{'ranks':>7} {'evidence':<22} {'s':>6} {'MB':>6}  verdict")
    for name in args.sizes.split(","):
        for words, kept, cut in (
            ("stacks only", False, False),
            ("records", True, False),
            ("records, network cut", True, True),
        ):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                took_s, added, verdict = pool.apply(measure, (name, kept, cut))
            slow |= took_s > LIMITS_S[name]
            print(f"{name:>7} {words:<22} {took_s:6.2f} {added:6.0f}  {verdict}", flush=True)
    return 1 if slow and args.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
