"""Starts ranks: one by one, or with torchrun on each node."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchtower.drills.children import Child
from watchtower.drills.compiling import find_compiler
from watchtower.drills.errors import DrillError
from watchtower.drills.network import Network, why_no_network

PROGRAMS = Path(__file__).with_name("programs")
PROGRAM = {
    "data": {
        "stdlib": PROGRAMS / "train.py",
        "torch": PROGRAMS / "train_torch.py",
        "queued": PROGRAMS / "train_queued.py",
    },
    "grid": {
        "stdlib": PROGRAMS / "train_grid.py",
        "torch": PROGRAMS / "train_torch_grid.py",
        "queued": PROGRAMS / "train_queued_grid.py",
    },
    "pipeline": {
        "torch": PROGRAMS / "train_torch_pipeline.py",
        "queued": PROGRAMS / "train_queued_pipeline.py",
    },
    "server": {"queued": PROGRAMS / "serve_queued.py"},
    **{
        f"stranger_{path.stem}": {"torch": path}
        for path in sorted(PROGRAMS.glob("strangers/*.py"))
        if path.stem != "script"
    },
}
"""By kind of parallelism and backend."""
HOST = "127.0.0.1"
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
AUTO = ("torch", "stdlib", "queued")
"""Backends in the order in which `auto` tries them."""
PORTS_TRIED = 8000
"""Ports below the range of outgoing connections in which a free one is searched."""
MARK = "WATCHTOWER_DRILL_NODE"
"""Environment variable by which the agent of one imagined node finds its ranks."""

JOB_MARK = "WATCHTOWER_DRILL_JOB"
"""Environment variable by which all processes of the job are found when it is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How many ranks on how many nodes, in blocks as schedulers place them."""

    ranks: int
    nodes: int

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return rank * self.nodes // self.ranks

    def local_ranks(self, node: int) -> list[int]:
        """Return the ranks of a node."""
        return [rank for rank in range(self.ranks) if self.node_of(rank) == node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of the job."""

    job: str
    mark: str
    """Separates the processes of two jobs with one name. Else the name of the job."""
    backend: str
    layout: Layout
    folder: Path
    environment_folder: Path
    """The folder of the environment whose agents watch the job."""
    plan_path: Path
    port: int
    """Where the ranks meet."""
    parallelism: str = "data"
    """Kind of parallelism: a key of `PROGRAM`."""
    label: str
    """Separates the output files of several starts."""
    named: bool = True
    """Whether the launcher gives the job its own name."""
    restart_counts: tuple[int, ...] = ()
    """Restart count of each node's launcher."""
    renamed: bool = False
    """Whether each rank gets its number as an argument, sets it at run time and has a title."""
    network: Network | None = None
    """Gives each rank its own network link. Without it, ranks share this machine's."""
    more_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """Return the command of every rank."""
        program = PROGRAM[self.parallelism][self.backend].relative_to(PROGRAMS)
        return [str(copy_programs(self.folder) / program), "--config", str(self.plan_path)]

    def environment(self, node: int) -> dict[str, str]:
        """Return the environment variables of every process of a node."""
        name = {"WATCHTOWER_JOB": self.job} if self.named else {"TORCHELASTIC_RUN_ID": "none"}
        counts = self.restart_counts
        counted = {"TORCHELASTIC_RESTART_COUNT": str(counts[node])} if counts else {}
        return {
            **name,
            **counted,
            **self.more_environment,
            MARK: node_mark(self.environment_folder, node),
            JOB_MARK: job_mark(self.folder, self.mark),
            # For Yama in the mode in which only parents may trace: the agent is not a parent of the
            # ranks.
            "WATCHTOWER_PTRACE": "any",
            "OMP_NUM_THREADS": "1",
            # torchrun and killed ranks leave temporary folders behind.
            "TMPDIR": str(self.folder.resolve()),
        }


def copy_programs(folder: Path) -> Path:
    """Copy the programs into the folder of a job, once, and return where they are.

    They stand for the code of a user. In site-packages they would be a library's.
    """
    copy = folder / PROGRAMS.name
    if not copy.exists():
        shutil.copytree(PROGRAMS, copy)
    return copy


def node_mark(environment_folder: Path, node: int) -> str:
    """Return the mark of one node's ranks in this environment.

    Other environments may run in parallel, in folders of the same name.
    """
    return f"{environment_folder.resolve()}/{node_name(node)}"


def job_mark(folder: Path, job: str) -> str:
    """Return the mark of the processes of this job with its files in `folder`.

    A job of the same name in another folder is another job: what ends one must spare the other.
    """
    return f"{folder.resolve()}/{job}"


def node_name(node: int) -> str:
    """Return drill-a, drill-b and so on; numbers after drill-z."""
    return f"drill-{chr(ord('a') + node)}" if node < 26 else f"drill-{node}"


def choose_backend(
    wanted: str,
    offered: tuple[str, ...],
    *,
    networked: tuple[str, ...] = (),
    libraries: tuple[str, ...] = (),
) -> str:
    """Return the backend. Raises DrillError if the drill or this machine does not support it.

    `networked` are the backends for which the drill needs a network namespace for each rank,
    `libraries` the modules that it needs on every backend.
    """
    if missing := [name for name in libraries if importlib.util.find_spec(name) is None]:
        raise DrillError(f"the drill needs {', '.join(missing)}, which is not installed")
    if wanted not in ("auto", *offered):
        raise DrillError(f"this drill supports {', '.join(offered)}, but not {wanted}")
    lacks = {}
    for backend in [one for one in AUTO if one in offered] if wanted == "auto" else [wanted]:
        lack = why_not(backend) or (why_no_network() if backend in networked else None)
        if lack is None:
            return backend
        lacks[backend] = lack
    reasons = "; ".join(f"cannot use {backend} here: {lack}" for backend, lack in lacks.items())
    others = [backend for backend in offered if backend not in lacks]
    raise DrillError(reasons, f"use --backend {others[0]}" if others else "")


def _why_no_torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def _why_not_queued() -> str | None:
    return _why_no_torch() or (
        None if find_compiler() else "no C compiler is installed (cc, gcc or clang)"
    )


def why_not(backend: str) -> str | None:
    """Return what this machine lacks for a backend; None if it can run."""
    return LACKS[backend]()


LACKS: dict[str, Callable[[], str | None]] = {
    "stdlib": lambda: None,
    "torch": _why_no_torch,
    "queued": _why_not_queued,
}
"""By backend: returns what this machine lacks for it; None if nothing."""


def start_ranks(launch: Launch, ranks: Iterable[int]) -> Iterator[Child]:
    """Start these ranks, each as a child of the drill."""
    layout, network = launch.layout, launch.network
    for rank in ranks:
        node = layout.node_of(rank)
        local = layout.local_ranks(node)
        identity = {
            "RANK": str(rank),
            "WORLD_SIZE": str(layout.ranks),
            "LOCAL_RANK": str(local.index(rank)),
        }
        arguments = ("--identity", *identity.values()) if launch.renamed else ()
        command = [sys.executable, *launch.command, *arguments]
        yield Child(
            f"{launch.label}-rank-{rank}",
            [*(network.enter(rank) if network else ()), *command],
            launch.folder,
            environment={
                **launch.environment(node),
                **({} if launch.renamed else identity),
                "LOCAL_WORLD_SIZE": str(len(local)),
                "MASTER_ADDR": HOST,
                "MASTER_PORT": str(launch.port),
                **(network.environment if network else {}),
            },
        )


def start_torchruns(launch: Launch) -> Iterator[Child]:
    """Start torchrun once for every node, with static rendezvous."""
    layout = launch.layout
    for node in range(layout.nodes):
        yield Child(
            f"{launch.label}-torchrun-{node_name(node)}",
            [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes", str(layout.nodes), "--node-rank", str(node)),
                *("--nproc-per-node", str(len(layout.local_ranks(node)))),
                *("--master-addr", HOST, "--master-port", str(launch.port)),
                *launch.command,
            ],
            launch.folder,
            environment=launch.environment(node),
            # SIGTERM, so that torchrun can end its workers.
            parent_death=signal.SIGTERM,
        )


def free_port() -> int:
    """Return a free port that the kernel does not assign to outgoing connections.

    It is used a moment later, or again after a restart. No other process may get it meanwhile.
    """
    first, _ = PORT_RANGE.read_text().split()
    kept_free = range(max(1024, int(first) - PORTS_TRIED), int(first))
    for port in random.sample(kept_free, len(kept_free)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        chosen: int = probe.getsockname()[1]
        return chosen
