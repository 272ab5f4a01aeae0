"""fully_shard (FSDP2) on a device mesh, as torchtitan and the tutorial have it, with torch 2.13:
transformer blocks, each sharded, and a norm of the gradients that is clipped.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from script import Script
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH = 32
VOCABULARY = 64
LAYERS = 2
SEQUENCE = 16


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        attended, _ = self.attention(x, x, x, need_weights=False)
        return x + self.feed_forward(self.norm(x + attended))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(TransformerBlock() for _ in range(LAYERS))
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(h)


def apply_fsdp(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train_step(model, optimizer, tokens):
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def main():
    script = Script()
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    script.visit("joined")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    model = Transformer()
    apply_fsdp(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(script.steps):
        script.begin_step(step)
        tokens = torch.randint(0, VOCABULARY, (2, SEQUENCE))
        loss = train_step(model, optimizer, tokens)
        script.end_step(step, loss.item())
    script.visit("exit")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
