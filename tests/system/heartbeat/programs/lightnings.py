"""A Lightning module that says where it is and waits to be checked.

Argument: which of the two names of Lightning to import.
"""

import os
import sys
from importlib import import_module

import torch

NAME = os.environ["LIGHTNING_NAME"]
pl = import_module(NAME)

from watchtower_heartbeat.lightning import HeartbeatCallback  # noqa: E402


def pause(where):
    print(where, flush=True)
    sys.stdin.readline()


class Model(pl.LightningModule):
    def __init__(self, bad_from=None):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.bad_from = bad_from

    def loss(self, where, batch, number):
        pause(where)
        bad = self.bad_from is not None and where == "training" and number >= self.bad_from
        return (self.layer(batch) ** 2).mean() * (float("nan") if bad else 1.0)

    def training_step(self, batch, number):
        return self.loss("training", batch, number)

    def validation_step(self, batch, number):
        self.loss("sanity" if self.trainer.sanity_checking else "validating", batch, number)

    def test_step(self, batch, number):
        self.loss("testing", batch, number)

    def predict_step(self, batch, number):
        return self.loss("predicting", batch, number)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class PausingDisk(pl.plugins.io.TorchCheckpointIO):
    def save_checkpoint(self, *args, **kwargs):
        pause("saving")
        super().save_checkpoint(*args, **kwargs)


def build(folder, callbacks=None, save=0, bad_from=None, **settings):
    pl.seed_everything(0, verbose=False)
    saves = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=save, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=([HeartbeatCallback()] if callbacks is None else callbacks)
        + [saves] * (save > 0),
        default_root_dir=folder,
        enable_checkpointing=save > 0,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        plugins=[PausingDisk()],
        **({"max_epochs": 1, "num_sanity_val_steps": 0} | settings),
    )
    return trainer, Model(bad_from)


def batches(count):
    return torch.utils.data.DataLoader([torch.ones(3) * n for n in range(count)])


names = {"build": build, "batches": batches, "pl": pl, "torch": torch}
print("ready", flush=True)
for line in sys.stdin:
    exec(line, names)
    print("done", flush=True)
