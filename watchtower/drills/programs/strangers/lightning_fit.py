"""A LightningModule that a Trainer fits (lightning 2.6), with validation after each epoch and a
checkpoint callback.
"""

import os

import lightning as L
import torch
import torch.nn.functional as F
from script import Script
from torch.utils.data import DataLoader, TensorDataset

EPOCH = 8  # batches of a rank
BATCH = 4


class LitClassifier(L.LightningModule):
    def __init__(self, script):
        super().__init__()
        self.script = script
        self.model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU())
        self.head = torch.nn.Linear(32, 2)

    def setup(self, stage):
        self.script.visit("joined")

    def forward(self, x):
        return self.head(self.model(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.script.begin_step(self.global_step)
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.script.end_step(self.global_step - 1, outputs["loss"].item())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y), sync_dist=True)

    def on_train_end(self):
        self.script.visit("exit")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class RandomDataModule(L.LightningDataModule):
    def train_dataloader(self):
        return self.make_loader()

    def val_dataloader(self):
        return self.make_loader()

    def make_loader(self):
        size = EPOCH * BATCH * self.trainer.world_size
        dataset = TensorDataset(torch.rand(size, 20), torch.randint(0, 2, (size,)))
        return DataLoader(dataset, batch_size=BATCH)


def main():
    script = Script()
    torch.set_num_threads(1)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        max_steps=script.steps,
        max_epochs=-1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[L.pytorch.callbacks.ModelCheckpoint(dirpath="checkpoints")],
    )
    trainer.fit(LitClassifier(script), datamodule=RandomDataModule())


if __name__ == "__main__":
    main()
