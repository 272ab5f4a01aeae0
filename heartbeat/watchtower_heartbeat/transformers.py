"""Heartbeats for Hugging Face's Trainer: `Trainer(..., callbacks=[HeartbeatCallback()])`.

transformers.TrainerCallback has events for the end of an evaluation or a save, not for the begin.
The begin is detected by the flags of `control`, which are set at the end of a step.
"""

from __future__ import annotations

from transformers import TrainerCallback

from watchtower_heartbeat.beating import check_loss
from watchtower_heartbeat.hooks import FRAMEWORK, HookPhase, beats, declare_known, harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import TrainerControl, TrainerState, TrainingArguments


class HeartbeatCallback(TrainerCallback):  # type: ignore[misc]  # Any where it is not installed
    """Sends a heartbeat after each step with the Trainer's `global_step`; marks eval and
    checkpoint.
    """

    def __init__(self) -> None:
        """Start outside of all phases."""
        self._phase = HookPhase()

    @harmless
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: object, **_: object
    ) -> None:
        """Declare what all ranks must have in common."""
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        declare_known(
            global_batch=batch,
            precision="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
            lr=args.learning_rate,
            seed=args.seed,
            max_steps=state.max_steps,
        )

    @harmless
    def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
        """Return to plain training, also after an evaluation that failed."""
        self._phase.show("")

    @harmless
    def on_step_end(
        self, args: object, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Send a heartbeat, and show the phase that begins next."""
        beats.beat(FRAMEWORK, state.global_step)
        self._show_next_phase(control)

    @harmless
    def on_epoch_end(
        self, args: object, state: object, control: TrainerControl, **_: object
    ) -> None:
        """Show the phase that begins next, if evaluation and saves happen per epoch."""
        self._show_next_phase(control)

    def _show_next_phase(self, control: TrainerControl) -> None:
        if control.should_evaluate:
            self._phase.show("eval")
        else:
            self._phase.show("checkpoint" if control.should_save else "")

    @harmless
    def on_prediction_step(self, args: object, state: object, control: object, **_: object) -> None:
        """Enter an evaluation without an earlier event: `evaluate()` or `predict()` was called."""
        self._phase.show("eval")

    @harmless
    def on_evaluate(
        self, args: object, state: object, control: TrainerControl, **_: object
    ) -> None:
        """End the evaluation. A save comes after it, never before."""
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
        """Check the logged loss, which is a float here."""
        if logs and (loss := logs.get("loss")) is not None:
            check_loss(state.global_step, loss)

    @harmless
    def on_train_end(self, args: object, state: object, control: object, **_: object) -> None:
        """Release the heartbeat for other training code after this."""
        self._phase.show("")
        beats.release()
