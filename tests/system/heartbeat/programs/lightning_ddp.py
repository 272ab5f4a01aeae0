"""Two ranks that Lightning starts itself, on gloo: each says its pid in its step and waits."""

import os

import lightning.pytorch as pl
import torch
from watchtower_heartbeat.lightning import HeartbeatCallback


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, number):
        os.write(1, f"pid {os.getpid()}\n".encode())
        os.read(0, 1)
        return (self.layer(batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if os.environ.get("LOCAL_RANK") is None:
    print("ready", flush=True)
pl.Trainer(
    accelerator="cpu",
    callbacks=[HeartbeatCallback()],
    devices=2,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
    logger=False,
    max_steps=1,
    strategy="ddp",
).fit(Model(), torch.utils.data.DataLoader([torch.ones(3), torch.ones(3)]))
# torch 2.13 may abort a process whose gloo threads, kept by DDP, let go of tensors as Python ends.
os._exit(0)
