"""The faults, separate from the normal training code.

Most faults only change what the training code works with (storage becomes slow, a record is cut),
so the stacks are those of ordinary training code. The moment of the fault is printed on stdout.
"""

import fcntl
import os
import time

import compiler
import starting
from report import emit

FOREVER_S = 86400.0

HOARDED_BYTES, MOST_HOARDED = 2 << 20, 256
"""Bytes of one piece, and the most pieces: half a GB, if no limit ends the process before."""

NCCL_ERROR = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, {} (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n{}\nLast error:\n{}"
)
NCCL_ERRORS = {
    "shared_memory": (
        "unhandled system error",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
        "device error.",
        "Error: failed to extend /dev/shm/nccl-Xk3bQz to 33030532 bytes, error: No space left on "
        "device (28)",
    ),
    "closed": (
        "remote process exited or there was a network error",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
        "socketProgress: Connection closed by remote peer node-17<41822>",
    ),
}
"""The words of torch and NCCL: what torch makes of the result, its name, and the last error."""


def slow_storage(trainer):
    trainer.storage.latency_s = FOREVER_S


def wait_for_quota(trainer):
    trainer.quota_s = FOREVER_S


def endless_sampling(trainer):
    trainer.model.excluded = range(1_000_000)


def relock(trainer):
    trainer.metrics.flush_every = 1


def truncated_record(trainer):
    trainer.storage.truncated = True


def wrong_unit(trainer):
    trainer.storage.unit = 1e6


def lack_batch(trainer):
    trainer.loader.batches -= 1


def reverse_exchanges(trainer):
    trainer.exchanges.reverse()


def grow_vocabulary(trainer):
    trainer.words *= 2


def silence_output(trainer):
    trainer.gain = 0.0


def keep_index_lock(trainer):
    trainer.loader.index_lock.acquire()


def undrained_pipe(trainer):
    path = trainer.checkpointer.path
    os.mkfifo(path)
    trainer.upload = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(trainer.upload, fcntl.F_SETPIPE_SZ, 4096)


def change_outlet(trainer):
    trainer.checkpointer.path = trainer.plan.outlet


def move_index(trainer):
    trainer.storage.index = trainer.plan.outlet


def spawn_uploader(trainer):
    trainer.checkpointer.upload(trainer.plan.outlet)


def stop_early(trainer):
    trainer.should_stop = True


def die(trainer):
    os._exit(3)


def raise_nccl_error(trainer, what, after_s=0.0):
    time.sleep(after_s)
    raise trainer.backend_error(NCCL_ERROR.format(*NCCL_ERRORS[what]))


def hoard(trainer):
    trainer.activations = []
    while len(trainer.activations) < MOST_HOARDED:
        trainer.activations.append(b"\1" * HOARDED_BYTES)
        time.sleep(0.005)
    time.sleep(FOREVER_S)


def skip_micro_batch(trainer):
    trainer.micro_batches -= 1


def stick_device(trainer):
    trainer.device.run_for(float("inf"))


def recompile(trainer, seconds):
    compiler.compile_kernels(seconds)


def import_modules(trainer, seconds):
    starting.import_modules(seconds * (trainer.rank + 1) / trainer.world_size)


def reach_service(trainer, seconds):
    starting.reach_service(seconds)


def download(trainer, seconds):
    trainer.download(seconds)


def compile_once(trainer, seconds):
    compiler.compile_once(os.getcwd(), seconds)


def evaluate_alone(trainer, seconds):
    trainer.evaluate(seconds if trainer.rank == 0 else 0.0)


def slow_down(trainer, factor):
    trainer.device.step_s *= factor
    trainer.storage.latency_s *= factor


ACTS = {
    act.__name__: act
    for act in (
        slow_storage,
        wait_for_quota,
        endless_sampling,
        relock,
        truncated_record,
        wrong_unit,
        lack_batch,
        reverse_exchanges,
        grow_vocabulary,
        silence_output,
        keep_index_lock,
        undrained_pipe,
        change_outlet,
        move_index,
        spawn_uploader,
        stop_early,
        die,
        raise_nccl_error,
        hoard,
        skip_micro_batch,
        stick_device,
        recompile,
        import_modules,
        reach_service,
        download,
        compile_once,
        evaluate_alone,
        slow_down,
    )
}


class Events:
    """A callback of the trainer: runs this rank's share of the planned events.

    An event is {"act", "rank" (null: every rank), "when", "step"} and arguments of the act. `when`
    is "setup" (before the rank joins), "joined" (before the first collective), "before_step"
    (before the step's batch), "optimizer_end", or "exit" (before the last barrier).
    """

    def __init__(self, rank, events):
        self.rank = rank
        self.events = [event for event in events if event["rank"] in (rank, None)]

    def setup(self, trainer):
        self._run(trainer, "setup", 0)

    def joined(self, trainer):
        self._run(trainer, "joined", 0)

    def exit(self, trainer):
        self._run(trainer, "exit", 0)

    def optimizer_end(self, trainer, step):
        self._run(trainer, "optimizer_end", step)

    def before_step(self, trainer, step):
        self._run(trainer, "before_step", step)

    def _run(self, trainer, when, step):
        for event in self.events:
            if event["when"] == when and event["step"] == step:
                emit("fault", rank=self.rank, step=step, monotonic_s=time.monotonic())
                ACTS[event["act"]](trainer, **event.get("arguments", {}))
