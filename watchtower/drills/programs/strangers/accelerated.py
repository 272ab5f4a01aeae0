"""A loop with Accelerate, as its examples (nlp_example.py, accelerate 1.15) have it: prepare,
backward, gather_for_metrics at the end of each epoch.
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from script import Script
from torch.utils.data import DataLoader, TensorDataset

EPOCH = 8  # batches of a rank
BATCH = 4


def get_dataloaders(world_size):
    size = EPOCH * BATCH * world_size
    dataset = TensorDataset(torch.rand(size, 20), torch.randint(0, 2, (size,)))
    return DataLoader(dataset, batch_size=BATCH, shuffle=True), DataLoader(
        dataset, batch_size=BATCH
    )


def training_function(script):
    accelerator = Accelerator(cpu=True)
    script.visit("joined")
    train_dataloader, eval_dataloader = get_dataloaders(accelerator.num_processes)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    step = 0
    while step < script.steps:
        model.train()
        for inputs, labels in train_dataloader:
            if step >= script.steps:
                break
            script.begin_step(step)
            loss = F.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            script.end_step(step, loss.item())
            step += 1
        evaluate(accelerator, model, eval_dataloader)
    script.visit("exit")
    accelerator.wait_for_everyone()
    accelerator.end_training()


def evaluate(accelerator, model, dataloader):
    model.eval()
    for inputs, labels in dataloader:
        with torch.no_grad():
            predictions = model(inputs).argmax(dim=-1)
        accelerator.gather_for_metrics((predictions, labels))


if __name__ == "__main__":
    torch.set_num_threads(1)
    training_function(Script())
