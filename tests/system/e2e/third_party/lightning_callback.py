"""Lightning's DDP; a callback of one rank waits for an answer behind a lock that nobody frees."""

import os
import threading

import lightning.pytorch as pl
from common import WORLD, compute, is_time, torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from watchtower_heartbeat.lightning import HeartbeatCallback


class Publisher(pl.Callback):
    def __init__(self):
        self.answered = threading.Event()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        if is_time(number):
            self.answered.wait()


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, number):
        compute()
        return (self.layer(batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.set_num_threads(1)
os.environ.update(TORCHELASTIC_RUN_ID="none", GROUP_RANK="0", LOCAL_WORLD_SIZE=str(WORLD))
os.environ["LOCAL_RANK"] = os.environ["RANK"]
pl.Trainer(
    accelerator="cpu",
    callbacks=[HeartbeatCallback(), Publisher()],
    devices=WORLD,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
    logger=False,
    max_steps=4000,
    plugins=[TorchElasticEnvironment()],
    strategy="ddp",
    use_distributed_sampler=False,
).fit(Model(), torch.utils.data.DataLoader([torch.ones(3)] * 4000))
