"""The shapes of healthy jobs of `advised.py`: who starts them, and what they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RANK = {"RANK": "{n}", "LOCAL_RANK": "{n}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of job. {n}, {port}, {folder} and {python} are replaced."""

    name: str
    what: str
    command: tuple[str, ...]
    processes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    names_itself: bool = False
    on_two_nodes: bool = False


def _ranks(name: str, what: str, kind: str, count: int = 2, **environment: str) -> Shape:
    return Shape(
        name=name,
        what=what,
        command=("{python}", "train.py", kind),
        processes=count,
        environment={**RANK, "WORLD_SIZE": str(count), **environment},
    )


def _torchrun(name: str, what: str, kind: str) -> Shape:
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "{port}")
    return Shape(name=name, what=what, command=("{python}", *words, "train.py", kind))


def _others(name: str, what: str, prefix: str, size: str) -> Shape:
    return Shape(
        name=name,
        what=what,
        command=("{python}", "train.py", "plain"),
        processes=2,
        environment={f"{prefix}RANK": "{n}", f"{prefix}{size}": "2"},
    )


SHAPES = (
    _ranks("plain", "four plain ranks", "plain", 4),
    _ranks("saves", "each rank saves a checkpoint of its own", "saves", 2),
    _ranks("first-saves", "rank 0 saves a checkpoint, and replaces the one before", "first_saves"),
    _ranks("declares", "ranks declare batch and learning rate, each its seed", "declares", 3),
    _ranks("late-settings", "a program sets its variables itself, one rank late", "late"),
    _ranks("one", "one rank", "plain", 1),
    Shape(
        name="two-nodes",
        what="two ranks on two nodes",
        command=("{python}", "train.py", "plain"),
        processes=2,
        environment={**RANK, "WORLD_SIZE": "2"},
        on_two_nodes=True,
    ),
    _others("mpi", "variables of Open MPI", "OMPI_COMM_WORLD_", "SIZE"),
    _others("horovod", "variables of Horovod", "HOROVOD_", "SIZE"),
    _ranks("ddp", "torch DDP on gloo, started by hand", "ddp"),
    _torchrun("ddp-run", "torch DDP on gloo by torchrun", "ddp"),
    _torchrun("loader", "torch DDP with workers of a DataLoader", "loader"),
    _torchrun("fsdp", "torch FSDP2 on gloo", "fsdp"),
    _torchrun("dcp", "torch.distributed.checkpoint every few steps", "dcp"),
    _torchrun("stages", "two pipeline stages with send and recv", "stages"),
    _torchrun("accelerate", "a loop with Accelerator.prepare and backward", "accelerate"),
    _torchrun("trainer", "Hugging Face's Trainer with its callback", "trainer"),
    Shape(
        name="lightning",
        what="Lightning with its callback, which starts the second rank itself",
        command=("{python}", "train.py", "lightning"),
        environment={"MASTER_PORT": "{port}"},
    ),
    Shape(
        name="jax",
        what="JAX, two processes",
        command=("{python}", "train.py", "jax"),
        processes=2,
        environment={
            "JAX_PROCESS_ID": "{n}",
            "JAX_NUM_PROCESSES": "2",
            "JAX_COORDINATOR_ADDRESS": "127.0.0.1:{port}",
            "JAX_PLATFORMS": "cpu",
            **RANK,
            "WORLD_SIZE": "2",
        },
    ),
    Shape(
        name="ray",
        what="actors of Ray with ranks in runtime_env",
        command=("{python}", "train.py", "ray"),
        environment={"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
    ),
)

PROGRAM = '''
"""Makes steps of a tenth of a second in one of many ways, until it is ended."""

import os
import sys
import time

KIND = sys.argv[1]
RANK = int(os.environ.get("RANK", "0"))
STEPS = 100_000


def step(number, seconds=0.1, **loss):
    from watchtower_heartbeat import beat

    time.sleep(seconds)
    beat(number, **loss)


def plain():
    for number in range(STEPS):
        step(number, loss=0.5)


def saves():
    from watchtower_heartbeat import phase

    for number in range(STEPS):
        step(number)
        if number % 50 == 49:
            with phase("checkpoint"), open(f"rank-{RANK}.pt", "wb") as file:
                file.write(bytes(1 << 20))
                time.sleep(6.0)


def first_saves():
    from watchtower_heartbeat import phase

    for number in range(STEPS):
        step(number)
        if number % 50 == 49:
            with phase("checkpoint"):
                if RANK == 0:
                    with open("new.tmp", "wb") as file:
                        file.write(bytes(1 << 20))
                        time.sleep(6.0)
                    os.replace("new.tmp", "last.pt")
                else:
                    time.sleep(6.0)


def declares():
    from watchtower_heartbeat import declare

    declare(global_batch=64, lr=0.1, seed=RANK)
    plain()


def late():
    time.sleep(3.0 * RANK)
    os.environ["NCCL_BUFFSIZE"] = "65536"
    plain()


def group():
    import torch.distributed as dist
    import watchtower_heartbeat  # noqa: F401

    dist.init_process_group("gloo")
    return dist


def ddp(workers=0):
    import torch

    group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(100_000, 8))
    number = 0
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step(number)
        number += 1


def loader():
    ddp(workers=1)


def fsdp():
    import torch
    from torch.distributed.fsdp import fully_shard

    group()
    torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    model = torch.nn.Linear(8, 8)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        step(number)


def dcp():
    import torch
    import torch.distributed.checkpoint as saving
    from watchtower_heartbeat import phase

    dist = group()
    state = {"weights": torch.ones(1 << 16), "rank": RANK}
    for number in range(STEPS):
        dist.all_reduce(torch.ones(1))
        step(number)
        if number % 50 == 49:
            with phase("checkpoint"):
                saving.save(state, checkpoint_id=f"{os.environ['TMPDIR']}/saved-{number}")


def stages():
    import torch

    dist = group()
    for number in range(STEPS):
        if RANK == 0:
            dist.send(torch.ones(8), 1)
        else:
            dist.recv(torch.ones(8), 0)
        step(number)


def accelerate():
    import torch
    from accelerate import Accelerator

    here = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 8)
    model, optimizer = here.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(STEPS):
        here.backward(model(torch.ones(4, 8)).sum())
        optimizer.step()
        step(number)


def trainer():
    import torch
    from transformers import Trainer, TrainingArguments
    from watchtower_heartbeat.transformers import HeartbeatCallback

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x, labels):
            time.sleep(0.1)
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    data = [{"x": torch.ones(3), "labels": torch.ones(1)} for _ in range(4096)]
    arguments = TrainingArguments(
        os.environ["TMPDIR"], use_cpu=True, report_to="none", disable_tqdm=True, max_steps=STEPS,
        save_strategy="steps", save_steps=100, save_total_limit=1, per_device_train_batch_size=2,
    )
    Trainer(Model(), arguments, train_dataset=data, callbacks=[HeartbeatCallback()]).train()


def lightning():
    import lightning.pytorch as pl
    import torch
    from watchtower_heartbeat.lightning import HeartbeatCallback

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, number):
            time.sleep(0.1)
            return (self.layer(batch) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saving = pl.callbacks.ModelCheckpoint(os.environ["TMPDIR"], every_n_train_steps=100)
    pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[HeartbeatCallback(), saving], max_steps=STEPS,
    ).fit(Model(), torch.utils.data.DataLoader([torch.ones(3) for _ in range(4096)]))


def jax():
    import jax as it
    import jax.numpy as jnp

    it.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], 2, RANK)
    for number in range(STEPS):
        jnp.ones(8).sum().block_until_ready()
        step(number)


def ray():
    import ray as it

    @it.remote(num_cpus=0.1)
    class Worker:
        def train(self):
            plain()

    it.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    job = {name: text for name, text in os.environ.items() if name.startswith("WATCHTOWER")}
    variables = [{"RANK": str(rank), "WORLD_SIZE": "2", **job} for rank in range(2)]
    workers = [Worker.options(runtime_env={"env_vars": each}).remote() for each in variables]
    it.get([each.train.remote() for each in workers])


{kind.__name__: kind for kind in (
    plain, saves, first_saves, declares, late, ddp, loader, fsdp, dcp, stages, accelerate,
    trainer, lightning, jax, ray,
)}[KIND]()
'''
