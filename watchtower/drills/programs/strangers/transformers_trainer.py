"""A small model that the Trainer of transformers (5.23) trains, with a callback, as the language
model examples have it.
"""

import torch
from script import Script
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

EPOCH = 8  # batches of a rank
VOCABULARY = 64
LENGTH = 16


class Blocks(Dataset):
    """Blocks of tokens, as group_texts of run_clm.py makes them."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        tokens = torch.randint(0, VOCABULARY, (LENGTH,))
        return {"input_ids": tokens, "labels": tokens}


class DrillCallback(TrainerCallback):
    def __init__(self, script):
        self.script = script

    def on_train_begin(self, args, state, control, **kwargs):
        self.script.visit("joined")

    def on_step_begin(self, args, state, control, **kwargs):
        self.script.begin_step(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        self.script.end_step(state.global_step - 1, 0.0)

    def on_train_end(self, args, state, control, **kwargs):
        self.script.visit("exit")


def main():
    script = Script()
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=script.steps,
        per_device_train_batch_size=2,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, bos_token_id=0
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Blocks(2 * EPOCH * arguments.world_size),
        callbacks=[DrillCallback(script)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
