"""A rank's cgroup is frozen: a scheduler's suspend, a container runtime's pause, a test.

Version 1 of cgroups shows it as state D, version 2 as ordinary sleep, and new kernels in the very
call it was caught in. The agent asks the cgroup; older kernels also have a function of that name.
"""

from __future__ import annotations

from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.held_ranks import accuse_held
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.phrases import clean
from watchtower.wire.verdict import Cause


def find(picture: Picture) -> Finding | None:
    """Accuse frozen ranks while others are not frozen."""
    frozen = [item for item in picture.live if item.is_frozen]
    if not frozen or len(frozen) == len(picture.live):  # the whole job: suspended
        return None
    first = frozen[0].evidence
    node = clean(first.node, 64) or "its node"
    return accuse_held(
        picture,
        frozen,
        cause=Cause.PROCESS_FROZEN,
        state=f"is {frozen[0].wait.says}",
        weight=0.9,
        next_steps=(
            f"on {node}: `cat /proc/{first.pid}/cgroup` names the cgroup; who froze it thaws it "
            "(`docker unpause`, `scontrol resume`, cgroup.freeze)",
            f"no signal reaches pid {first.pid} before it is thawed, SIGKILL on cgroup v1 included",
        ),
    )
