"""Programs in the style of real frameworks: their loops, their threads, their names.

Each is structured as users of the framework write it, and uses the real library. One rank takes a
lock twice in the user's own code, at any moment (`--moment`).
"""

from __future__ import annotations

from dataclasses import replace

from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill_run import Drill
from watchtower.drills.setup import names

ONLY = ("torch",)
STUCK = replace(
    names("lock_deadlock", domain="user_code"),
    # Where a framework calls the user from a function with another purpose.
    or_causes=("behind_collective",),
)


def stranger(name: str, shows: str, *libraries: str) -> Drill:
    """Return the drill of the program with this name."""
    return Drill(
        name=f"stranger_{name}",
        shows=f"{shows}: one rank takes its own lock twice",
        expected=STUCK,
        plan=event("relock"),
        parallelism=f"stranger_{name}",
        backends=ONLY,
        libraries=libraries,
        hangs_anywhere=True,
        act=happen,
    )


STRANGERS = (
    stranger("ddp", "a Trainer class with DistributedDataParallel, as in pytorch/examples"),
    stranger("fsdp2", "transformer blocks under fully_shard on a device mesh, as in torchtitan"),
    stranger("pipelining", "a GPipe schedule of torch.distributed.pipelining"),
    stranger("accelerated", "a loop with Accelerator.prepare and backward", "accelerate"),
    stranger("lightning_fit", "a LightningModule that lightning's Trainer fits", "lightning"),
    stranger("transformers_trainer", "transformers' Trainer with a callback", "transformers"),
)
