"""The training job of a drill: started, disturbed from outside and ended as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path
from signal import Signals

from watchtower.drills.children import Child, start_fixture
from watchtower.drills.compiling import compile_queued
from watchtower.drills.errors import DrillError
from watchtower.drills.launching import (
    JOB_MARK,
    Launch,
    Layout,
    free_port,
    job_mark,
    start_ranks,
    start_torchruns,
)
from watchtower.drills.network import Network
from watchtower.drills.program_log import ProgramLog


class TrainingJob:
    """The ranks of one job, over one or several starts."""

    def __init__(
        self,
        name: str,
        backend: str,
        layout: Layout,
        folder: Path,
        *,
        parallelism: str = "data",
        bare: bool = False,
        named: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = self.mark = name
        """`mark` separates files and processes of two jobs with one name."""
        self.folder = folder
        self.environment_folder = folder
        """Folder of the environment whose agents watch the job. It differs if the environment is
        shared.
        """
        self.layout = layout
        self.log = ProgramLog()
        self.renamed = False
        """Whether ranks set their numbers at run time, under a title. Set before a launch."""
        self.network: Network | None = None
        """Set before a launch whose links are cut later."""
        self.backend = backend
        self._parallelism = parallelism
        self._bare = bare or backend == "stdlib"
        self._named = named
        self._environment = environment or {}
        self._children: list[Child] = []
        self._launch: Launch | None = None
        self._sweeper: Child | None = None
        self._starts = 0

    def launch(
        self,
        plan: dict[str, object],
        missing: frozenset[int] = frozenset(),
        restart_counts: tuple[int, ...] = (),
    ) -> None:
        """Start the job. Everything left of an earlier start is ended first."""
        self.end()
        self._starts += 1
        self.log = ProgramLog()
        label = f"{self.mark}-start-{self._starts}"
        plan_path = self.folder / f"{label}.json"
        plan_path.write_text(json.dumps(plan), encoding="utf-8")
        launch = Launch(
            job=self.name,
            mark=self.mark,
            backend=self.backend,
            layout=self.layout,
            folder=self.folder,
            environment_folder=self.environment_folder,
            plan_path=plan_path,
            port=free_port(),
            parallelism=self._parallelism,
            label=label,
            named=self._named,
            renamed=self.renamed,
            restart_counts=restart_counts,
            network=self.network,
            more_environment={**self._environment, **self._libraries()},
        )
        words = [f"{JOB_MARK}={job_mark(self.folder, self.mark)}"]
        self._sweeper = start_fixture("sweeper.py", words, self.folder, label=label)
        self._children, self._launch = [], launch
        present = [rank for rank in range(self.layout.ranks) if rank not in missing]
        for child in start_ranks(launch, present) if self._bare else start_torchruns(launch):
            self._children.append(child)

    def launch_late(self, ranks: Iterable[int]) -> None:
        """Start ranks that were missing in the last launch, as when their node comes up late."""
        if self._launch:
            self._children += start_ranks(self._launch, ranks)

    def _libraries(self) -> dict[str, str]:
        return compile_queued(self.folder) if self.backend == "queued" else {}

    def make_twin(self, suffix: str = "beside", *, same_name: bool = False) -> TrainingJob:
        """Return another job of the same size on the same nodes."""
        mark = f"{self.name}-{suffix}"
        twin = TrainingJob(
            self.name if same_name else mark,
            self.backend,
            self.layout,
            self.folder,
            parallelism=self._parallelism,
            bare=self._bare,
            named=self._named,
            environment=self._environment,
        )
        twin.mark = mark
        twin.environment_folder = self.environment_folder
        twin.renamed = self.renamed
        return twin

    def poll(self) -> None:
        """Read new output of the programs, and reap processes as launchers do."""
        for child in self._children:
            child.exit_code()
        self.log.read([child.output for child in self._children])

    def pid(self, rank: int) -> int:
        """Return the pid of a rank."""
        if rank not in self.log.pids:
            raise DrillError(f"rank {rank} has not started", self.tail())
        return self.log.pids[rank]

    def worker(self, rank: int) -> int:
        """Return the pid of the process that prefetches batches for a rank."""
        if rank not in self.log.workers:
            raise DrillError(f"rank {rank} has no worker", self.tail())
        return self.log.workers[rank]

    def signal(self, rank: int, number: Signals) -> None:
        """Send a signal to one rank."""
        os.kill(self.pid(rank), number)

    def signal_all(self, number: Signals, ranks: Iterable[int] | None = None) -> None:
        """Send a signal to every rank, or to `ranks`, as a launcher or scheduler does."""
        for rank in self.log.pids if ranks is None else ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid(rank), number)

    def signal_launchers(self, number: Signals, node: int | None = None) -> None:
        """Send a signal to the launchers of all nodes or of one.

        Ranks that were started one by one have no launcher: each gets the signal, as from Slurm.
        """
        if self._bare:
            self.signal_all(number, None if node is None else self.layout.local_ranks(node))
            return
        for child in self._children if node is None else self._children[node : node + 1]:
            if child.exit_code() is None:
                child.signal(number)

    def allow_core(self, rank: int) -> None:
        """Allow a rank to write a core file, within its hard limit and the kernel's pattern."""
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.prlimit(self.pid(rank), resource.RLIMIT_CORE)
            resource.prlimit(self.pid(rank), resource.RLIMIT_CORE, (hard, hard))

    def kill_at_once(self, ranks: Iterable[int] | None = None) -> None:
        """Kill all ranks, or `ranks`, before one of them can see another die and raise."""
        chosen = list(self.log.pids if ranks is None else ranks)
        self.signal_all(Signals.SIGSTOP, chosen)
        self.signal_all(Signals.SIGKILL, chosen)

    def has_started(self) -> bool:
        """Return whether the program of every rank runs."""
        return len(self.log.pids) == self.layout.ranks

    def has_ended(self) -> bool:
        """Return whether every process of the job has ended."""
        return all(child.exit_code() is not None for child in self._children)

    def has_failed(self) -> bool:
        """Return whether a process of the job ended with an error."""
        return any(child.exit_code() not in (None, 0) for child in self._children)

    def end(self) -> None:
        """Kill the rest of the job, including stopped and traced processes and orphans."""
        self.poll()
        if self._sweeper:
            self._sweeper.end()
        for child in self._children:
            child.end(patience_s=0)

    def tail(self) -> str:
        """Return the last output of the failed ranks, or of all."""
        failed = [child for child in self._children if child.exit_code() not in (None, 0)]
        return "\n".join(child.tail() for child in failed or self._children)
