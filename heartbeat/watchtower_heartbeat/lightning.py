"""Beats for Lightning: `Trainer(..., callbacks=[HeartbeatCallback()])`.

Works with `lightning` and with `pytorch_lightning`, whichever the program has imported.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from watchtower_heartbeat.beating import Heartbeat, check_loss, is_on_device
from watchtower_heartbeat.hooks import FRAMEWORK, HookPhase, beats, harmless
from watchtower_heartbeat.launchers import read_identity
from watchtower_heartbeat.layout import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lightning.pytorch import Trainer

# The same framework under two names, with a class `Callback` each.
NAMES = ("lightning.pytorch", "pytorch_lightning")


def find_callback_classes() -> tuple[type, ...]:
    """Return `Callback` of every Lightning that is imported, else of the first that can be.

    Raises ImportError when there is none.
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
    """Beats at the end of each batch with the Trainer's `global_step`; marks eval and checkpoint.

    While gradients are accumulated several beats carry the same step.
    """

    def __init__(self) -> None:
        """Begin outside of all phases."""
        super().__init__()
        self._phase = HookPhase()

    @harmless
    def setup(self, trainer: Trainer, *_: object, **__: object) -> None:
        """Name the rank: Lightning's own launcher leaves it out of the environment."""
        if trainer.world_size > 1 and read_identity(os.environ)["rank"] == UNKNOWN:
            Heartbeat(
                rank=trainer.global_rank,
                world_size=trainer.world_size,
                local_rank=trainer.local_rank,
            )

    @harmless
    def on_train_batch_start(self, *_: object, **__: object) -> None:
        """Be back in plain training: this is the first that is heard after a checkpoint."""
        self._phase.show("")

    @harmless
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, *_: object, **__: object
    ) -> None:
        """Beat, and check the loss where that waits for no device."""
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
        """Begin a checkpoint; nothing tells its end, so the next event of the training does.

        Outside of a run there is no next event, and the save is not marked.
        """
        if trainer.state.stage is not None:
            self._phase.show("checkpoint")

    @harmless
    def on_fit_end(self, *_: object, **__: object) -> None:
        """Leave the word to whatever trains after this."""
        self._phase.show("")
        beats.release()
