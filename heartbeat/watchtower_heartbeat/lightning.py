"""Heartbeats for Lightning: `Trainer(..., callbacks=[HeartbeatCallback()])`.

Works with `lightning` and `pytorch_lightning`, depending on which one the program has imported.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from watchtower_heartbeat.beating import Heartbeat, check_loss, is_on_device, open_page
from watchtower_heartbeat.hooks import FRAMEWORK, HookPhase, beats, declare_known, harmless
from watchtower_heartbeat.launchers import read_identity
from watchtower_heartbeat.layout import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lightning.pytorch import Trainer

# The same framework under two names, each with a class `Callback`.
NAMES = ("lightning.pytorch", "pytorch_lightning")


def find_callback_classes() -> tuple[type, ...]:
    """Return `Callback` of every imported Lightning, else of the first one that can be imported.

    Raises ImportError if none is installed.
    """
    loaded = [name for name in NAMES if name in sys.modules]
    return tuple(_import_callback(name) for name in loaded) or (_import_any_callback(),)


def _import_any_callback() -> type:
    try:
        return _import_callback(NAMES[0])
    except ImportError:
        return _import_callback(NAMES[1])


def _import_callback(name: str) -> type:
    callback: type = import_module(name).Callback
    return callback


class HeartbeatCallback(*find_callback_classes()):  # type: ignore[misc]  # known at run time only
    """Sends a heartbeat after each batch with the Trainer's `global_step`; marks eval and
    checkpoint.

    While gradients are accumulated, several heartbeats have the same step.
    """

    def __init__(self) -> None:
        """Start outside of all phases."""
        super().__init__()
        self._phase = HookPhase()

    @harmless
    def setup(self, trainer: Trainer, *_: object, **__: object) -> None:
        """Make the page of a rank: Lightning's own launcher puts none in the environment of the
        process that it starts from, or only after that has imported this package."""
        if trainer.world_size <= 1:
            return
        if read_identity(os.environ)["rank"] != UNKNOWN:
            open_page()
            return
        Heartbeat(
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            local_rank=trainer.local_rank,
        )

    @harmless
    def on_train_start(self, trainer: Trainer, *_: object, **__: object) -> None:
        """Declare what all ranks must have in common."""
        batch = getattr(trainer.train_dataloader, "batch_size", None)
        groups = trainer.optimizers[0].param_groups if trainer.optimizers else [{}]
        declare_known(
            global_batch=batch and batch * trainer.accumulate_grad_batches * trainer.world_size,
            precision=trainer.precision,
            lr=groups[0].get("lr"),
            seed=os.environ.get("PL_GLOBAL_SEED"),
            max_steps=trainer.max_steps,
        )

    @harmless
    def on_train_batch_start(self, *_: object, **__: object) -> None:
        """Return to plain training. This is the first event after a checkpoint."""
        self._phase.show("")

    @harmless
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, *_: object, **__: object
    ) -> None:
        """Send a heartbeat, and check the loss if that does not wait for a device."""
        self._phase.show("")
        beats.beat(FRAMEWORK, trainer.global_step)
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and not is_on_device(loss):
            check_loss(trainer.global_step, loss)

    def _begin_eval(self, *_: object, **__: object) -> None:
        self._phase.show("eval")

    def _end_phase(self, *_: object, **__: object) -> None:
        self._phase.show("")

    on_sanity_check_start = on_validation_start = harmless(_begin_eval)
    on_test_start = on_predict_start = harmless(_begin_eval)
    on_sanity_check_end = on_validation_end = harmless(_end_phase)
    on_test_end = on_predict_end = harmless(_end_phase)
    on_train_epoch_start = on_fit_start = teardown = harmless(_end_phase)

    @harmless
    def on_save_checkpoint(self, trainer: Trainer, *_: object, **__: object) -> None:
        """Begin a checkpoint. No event marks its end, so the next event of the training ends it.

        Outside of a run there is no next event, so the save is not marked.
        """
        if trainer.state.stage is not None:
            self._phase.show("checkpoint")

    @harmless
    def on_fit_end(self, *_: object, **__: object) -> None:
        """Release the heartbeat for other training code after this."""
        self._phase.show("")
        beats.release()
