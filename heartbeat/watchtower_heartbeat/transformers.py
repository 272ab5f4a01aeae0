"""Beats for Hugging Face's Trainer: `Trainer(..., callbacks=[HeartbeatCallback()])`.

The events of transformers.TrainerCallback tell when an evaluation or a save is over, not when it
begins. What is about to begin is read from `control`, whose flags are set by the end of a step.
"""

from __future__ import annotations

from transformers import TrainerCallback

from watchtower_heartbeat.beating import check_loss
from watchtower_heartbeat.hooks import FRAMEWORK, HookPhase, beats, harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import TrainerControl, TrainerState


class HeartbeatCallback(TrainerCallback):  # type: ignore[misc]  # Any where it is not installed
    """Beats at the end of each step with the Trainer's `global_step`; marks eval and checkpoint."""

    def __init__(self) -> None:
        """Begin outside of all phases."""
        self._phase = HookPhase()

    @harmless
    def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
        """Be back in plain training, also after an evaluation that failed and was caught."""
        self._phase.show("")

    @harmless
    def on_step_end(
        self, args: object, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Beat, and say what comes next."""
        beats.beat(FRAMEWORK, state.global_step)
        self._show_what_comes(control)

    @harmless
    def on_epoch_end(
        self, args: object, state: object, control: TrainerControl, **_: object
    ) -> None:
        """Say what comes next, when evaluation and saves go by epochs."""
        self._show_what_comes(control)

    def _show_what_comes(self, control: TrainerControl) -> None:
        if control.should_evaluate:
            self._phase.show("eval")
        else:
            self._phase.show("checkpoint" if control.should_save else "")

    @harmless
    def on_prediction_step(self, args: object, state: object, control: object, **_: object) -> None:
        """Be in an evaluation that nobody announced: `evaluate()` or `predict()` was called."""
        self._phase.show("eval")

    @harmless
    def on_evaluate(
        self, args: object, state: object, control: TrainerControl, **_: object
    ) -> None:
        """End the evaluation; a save comes after it, never before."""
        self._phase.show("checkpoint" if control.should_save else "")

    @harmless
    def on_predict(self, args: object, state: object, control: object, **_: object) -> None:
        """End the prediction."""
        self._phase.show("")

    @harmless
    def on_save(self, args: object, state: object, control: object, **_: object) -> None:
        """End the save."""
        self._phase.show("")

    @harmless
    def on_log(
        self,
        args: object,
        state: TrainerState,
        control: object,
        logs: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        """Check the loss that is logged, a float by then."""
        if logs and (loss := logs.get("loss")) is not None:
            check_loss(state.global_step, loss)

    @harmless
    def on_train_end(self, args: object, state: object, control: object, **_: object) -> None:
        """Leave the word to whatever trains after this."""
        self._phase.show("")
        beats.release()
