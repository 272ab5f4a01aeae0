"""Launches: what an agent knows about one start of ranks on its node.

Two launches may have one name of a job: they are one job, its attempts, or two jobs. The tower
decides. All texts are untrusted.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.bounds import check_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a node. A text is empty if it is not known."""

    id: str
    """Names the launch on this node, together with the name and owner of its job."""
    launcher: str = ""
    """The process that started its ranks: its pid and start time, as "4711 88123"."""
    rendezvous: str = ""
    """Where its ranks meet, such as "node1:29500". Ranks that meet are one job."""
    network: str = ""
    """The network namespace of a rendezvous that only this machine can reach; else empty."""
    scheduler_id: str = ""
    """Id of the scheduler's job, such as "slurm 4711"."""
    run_id: str = ""
    """A unique id of the run, such as torchrun's `--rdzv-id`."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("id", self.id)
        check_text("launcher", self.launcher)
        check_text("rendezvous", self.rendezvous)
        check_text("network", self.network)
        check_text("scheduler_id", self.scheduler_id)
        check_text("run_id", self.run_id)
        if not self.id:
            raise ValueError("`id` is empty, a launch needs an id")
