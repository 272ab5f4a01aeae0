"""A model for Hugging Face's Trainer that says where it is and waits to be checked."""

import sys

import torch
from transformers import Trainer, TrainingArguments
from watchtower_heartbeat.transformers import HeartbeatCallback


def pause(where):
    print(where, flush=True)
    sys.stdin.readline()


class Model(torch.nn.Module):
    def __init__(self, bad_from):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.bad_from = bad_from
        self.calls = 0

    def forward(self, x, labels):
        self.calls += self.training
        pause("training" if self.training else "evaluating")
        loss = ((self.layer(x) - labels) ** 2).mean()
        bad = self.bad_from and self.calls >= self.bad_from
        return {"loss": loss * float("nan") if bad else loss, "logits": labels}


class PausingTrainer(Trainer):
    def _save_checkpoint(self, model, trial):
        pause("saving")
        super()._save_checkpoint(model, trial)


def build(folder, callbacks=None, bad_from=0, **settings):
    torch.manual_seed(0)
    data = [{"x": torch.ones(3) * n, "labels": torch.ones(1)} for n in range(8)]
    fixed = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_only_model": True}
    arguments = TrainingArguments(
        folder, **(fixed | {"per_device_train_batch_size": 2, "save_strategy": "no"} | settings)
    )
    return PausingTrainer(
        Model(bad_from),
        arguments,
        train_dataset=data,
        eval_dataset=data[:2],
        callbacks=[HeartbeatCallback()] if callbacks is None else callbacks,
    )


names = {"build": build, "Callback": HeartbeatCallback, "torch": torch}
print("ready", flush=True)
for line in sys.stdin:
    exec(line, names)
    print("done", flush=True)
