"""Hugging Face's Trainer on several ranks; one rank's data set asks storage that is gone."""

import os
import tempfile
import time

from common import LAST_GOOD, RANK, is_time, torch
from transformers import Trainer, TrainingArguments
from watchtower_heartbeat.transformers import HeartbeatCallback


class Documents(torch.utils.data.Dataset):
    def __init__(self):
        self.served = 0

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        self.served += 1
        time.sleep(100_000 if is_time(self.served) and self.served > LAST_GOOD else 0.2)
        return {"x": torch.ones(3), "labels": torch.ones(1)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean(), "logits": labels}


torch.set_num_threads(1)
os.environ.setdefault("LOCAL_WORLD_SIZE", "2")
Trainer(
    Model(),
    TrainingArguments(
        os.path.join(tempfile.gettempdir(), f"face-{os.getpid()}-{RANK}"),
        use_cpu=True,
        ddp_backend="gloo",
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        per_device_train_batch_size=1,
        max_steps=4000,
    ),
    train_dataset=Documents(),
    callbacks=[HeartbeatCallback()],
).train()
