"""Ranks that sleep in the kernel where no signal reaches them, and that no debugger may touch."""

from __future__ import annotations

from watchtower.drills.catalogue.stalls import event, write
from watchtower.drills.drill import Drill
from watchtower.drills.scene import Scene
from watchtower.drills.setup import names


def _spawn(scene: Scene) -> None:
    pipe = scene.set_up("pipe.py", str(scene.job.folder))
    scene.launch(outlet=pipe["path"])
    _wait(scene)


def _mount(scene: Scene) -> None:
    storage = scene.set_up("fuse_mount.py", str(scene.job.folder))
    scene.launch(outlet=f"{storage['path']}/checkpoint.bin")
    _wait(scene)


def _wait(scene: Scene) -> None:
    scene.wait_for_fault()
    scene.forbid_tracing(scene.rank)
    scene.wait_for_final()


def _freeze(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.forbid_tracing(scene.rank)
    scene.freeze(scene.rank)
    scene.wait_for_final()


D_STATE = Drill(
    name="d_state",
    shows="one rank starts a helper and sleeps in the kernel (state D) until it has started",
    expected=names("uninterruptible_io"),
    plan=event("spawn_uploader"),
    act=_spawn,
)

D_STATE_FUSE = Drill(
    name="d_state_fuse",
    shows="one rank writes to a file system that never answers (FUSE, needs root)",
    expected=names("uninterruptible_io"),
    plan=write("change_outlet"),
    act=_mount,
)

FROZEN = Drill(
    name="frozen",
    shows="one rank is frozen by its control group (needs root)",
    expected=names("process_frozen"),
    act=_freeze,
)
