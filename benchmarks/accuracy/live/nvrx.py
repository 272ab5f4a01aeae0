"""NVRx's fault tolerance: `ft_launcher`, a monitor process for each rank, a heartbeat each step.

0.4.1 is the last release that works without CUDA 13. Of its requirements, this benchmark needs
torch, pyyaml, packaging, psutil, nvidia-ml-py and defusedxml (pynvml is an empty wrapper of
nvidia-ml-py). `make accuracy` installs only nvrx and defusedxml.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from unittest.mock import patch

from benchmarks.accuracy.live.tool import THRESHOLD_S, Said, Text, Tool, shorten
from watchtower.drills.children import Child
from watchtower.drills.drill_run import Drill
from watchtower.drills.job import TrainingJob
from watchtower.drills.launching import HOST, Launch, free_port
from watchtower.drills.settings import DrillSettings
from watchtower.policy import Policy

CHECK_EVERY_S = 1.0
LAUNCHER = "nvidia_resiliency_ext.fault_tolerance.launcher"
INITIAL = "LIVE_INITIAL_S"
"""Variable with the seconds for the first heartbeat, equal to watchtower's for a first step."""
ELAPSED = re.compile(r"\[RankMonServer\d+@[^\]]*:(\d+)\] (Did not get .*heartbeat\..*)")
FAILED = re.compile(r"\[ft_launcher[^\]]*\] (failed \(exitcode: -?\d+\) local_rank: (\d+)).*")
"""The launcher's first failure. On one node a local rank is a rank."""


def read(text: Text) -> Said | None:
    """Read the monitors' messages, and the rank that the launcher names as the first to fail.

    A monitor knows only its own rank, and in a blocking collective all of them fire together.
    Therefore only the launcher's accusation counts.
    """
    whole = "\n".join(text.values())
    elapsed = ELAPSED.findall(whole)
    failed = FAILED.search(whole)
    words = []
    if elapsed:
        ranks = ", ".join(map(str, sorted({int(rank) for rank, _ in elapsed})))
        words.append(f"{elapsed[0][1]} (monitors of ranks {ranks})")
    if failed:
        words.append(failed[1])
    if not words:
        return None
    accused = (int(failed[2]),) if failed else ()
    return Said(accused=accused, text=shorten(words), is_final=failed is not None)


def start_ft_launcher(launch: Launch) -> Iterator[Child]:
    """Start all ranks under one ft_launcher, as start_torchruns does under torchrun."""
    yield Child(
        f"{launch.label}-ft-launcher",
        [
            *(sys.executable, "-W", "ignore", "-m", LAUNCHER),
            *("--nnodes", "1", "--nproc-per-node", str(launch.layout.ranks)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HOST}:{free_port()}"),
            *("--max-restarts", "0"),
            *("--ft-workload-check-interval", f"{CHECK_EVERY_S:g}"),
            *("--ft-rank-heartbeat-timeout", f"{THRESHOLD_S:g}"),
            *("--ft-initial-rank-heartbeat-timeout", launch.more_environment[INITIAL]),
            *launch.command,
        ],
        launch.folder,
        environment=launch.environment(0),
        parent_death=signal.SIGTERM,
    )


class FtJob(TrainingJob):
    """The ranks of one job under ft_launcher."""

    def launch(self, *words: object, **more: object) -> None:
        """Start the job. Only the launcher differs from other drills."""
        # Patched here, because results of the drills are valid for one commit of the product.
        with patch("watchtower.drills.job.start_torchruns", start_ft_launcher):
            super().launch(*words, **more)


def why_not(drill: Drill) -> str | None:
    """Return what ft_launcher does not support."""
    if drill.name == "never_started":
        return "ft_launcher starts all ranks of a node or none"
    if drill.whole_node:
        return "all ranks and their monitors are on the one node that would be lost"
    if drill.name == "symmetric":
        return "links are cut between network namespaces, and ft_launcher starts all ranks in one"
    return None


def _environment(drill: Drill) -> dict[str, str]:
    grace = drill.detection(DrillSettings()).get("startup_grace_s", Policy().startup_grace_s)
    return {INITIAL: str(grace)}


TOOL = Tool(
    name="nvrx",
    settings=f"heartbeat timeout {THRESHOLD_S:g} s, check every {CHECK_EVERY_S:g} s, no restarts",
    packages=("nvidia-resiliency-ext", "torch"),
    module="nvidia_resiliency_ext",
    environment=_environment,
    read=read,
    why_not=why_not,
    job=FtJob,
    nodes=1,
    in_own_network=False,
)
