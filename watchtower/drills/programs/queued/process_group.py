"""The process group: torch's collectives, queued."""

import functools
import itertools
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from queued.library import as_method

FOREVER = timedelta(days=1)
CANNOT_BE_ASKED = {"send", "recv", "reduce_scatter", "_reduce_scatter_base"}
"""Calls whose works end only in wait(), so that nothing else shows whether they have ended."""
PENDING = deque()  # (stream, number, results, tensors, divisor), in the order of the calls


class Queued(Work):
    """A queued call. `wait` orders the work after it on the device, and returns."""

    def __init__(self, device, stream, number, result):
        super().__init__()
        self.queued = device, stream, number
        self.outcome = torch.futures.Future()
        self.outcome.set_result(result)

    def wait(self, timeout=None):
        device, stream, number = self.queued
        device.order(device.compute, stream, number)
        return True

    def is_completed(self):
        device, stream, number = self.queued
        return device.is_done(stream, number)

    def get_future(self):
        """Return a future that is over at once. DDP orders its work by this, and never waits."""
        self.wait()
        return self.outcome


class QueuedGroup(dist.ProcessGroup):
    """One group. Its calls are executed by gloo, on a stream of the group's own."""

    def __init__(self, device, recorder, options):
        super().__init__(options.group_rank, options.group_size)
        self.device, self.recorder = device, recorder
        self.gloo = dist.ProcessGroupGloo(
            options.store, options.group_rank, options.group_size, FOREVER
        )
        self.stream = device.open_stream()
        self.numbers = itertools.count(1)
        self.ranks = options.global_ranks_in_group or list(range(options.group_size))
        self.recorder.add_group(options.group_id, self.ranks)
        self.named = options.group_id
        self.described = "undefined"

    def getBackendName(self):
        return "queued"

    def getGroupName(self):
        return self.named

    def setGroupName(self, name):
        self.named = name

    def getGroupDesc(self):
        return self.described

    def setGroupDesc(self, text):
        self.described = text

    group_name = property(lambda self: self.named)
    group_desc = property(lambda self: self.described)

    def queue(self, name, *arguments, shown="", transfer=False):
        """Queue gloo's method `name` on copies of its tensors; return the work."""
        copies, divisor = _copy(arguments), 1
        options = copies[-1]
        if getattr(options, "reduceOp", None) == dist.ReduceOp.AVG:
            options.reduceOp = dist.ReduceOp.SUM
            divisor = self.size()
        targets = [] if name in ("send", "barrier") else _tensors(arguments[0])
        if transfer:
            # Autograd must not notice that received values come late: on a device they do as well.
            targets = [target.data for target in targets]
        results = _tensors(copies[0]) if targets else []
        _fill(name, arguments, self.rank())
        device, stream = self.device, self.stream
        device.order(stream, device.compute)
        start = functools.partial(getattr(self.gloo, name), *copies)
        number = device.call(stream, start, can_be_asked=name not in CANNOT_BE_ASKED)
        inputs = _tensors(arguments[1] if len(_tensors(arguments[1:2])) else arguments[0])
        if name == "barrier":
            inputs = [torch.zeros(1)]  # NCCL's barrier is an all_reduce of one number
        self.recorder.add(
            self.named,
            self.described,
            0 if transfer else next(self.numbers),
            shown or name,
            inputs,
            targets,
            (stream, number),
        )
        PENDING.append((stream, number, results, targets, divisor))
        return Queued(device, stream, number, targets)


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(value, list | tuple):
        return [_copy(one) for one in value]
    return value


def _tensors(value):
    """Return the tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for one in value for tensor in _tensors(one)]
    return []


@torch.no_grad()
def _fill(name, arguments, rank):
    """Give the outputs values of this rank, until those of the group arrive."""
    if name in ("recv", "recv_anysource"):
        targets, sources = _tensors(arguments[0]), []
    elif name in ("allgather", "_allgather_base", "alltoall_base", "gather", "alltoall"):
        targets, sources = _tensors(arguments[0]), _tensors(arguments[1])
    elif name in ("reduce_scatter", "_reduce_scatter_base", "scatter"):
        targets, sources = _tensors(arguments[0]), _tensors(arguments[1])
        sources = sources[rank : rank + 1] or sources
    else:
        return
    for target in targets:
        flat = target.detach().view(-1)
        source = sources[0].detach().reshape(-1) if sources else flat[:0]
        for at in range(0, len(flat), len(source) or len(flat) or 1):
            part = flat[at : at + len(source)] if len(source) else flat
            part.copy_(source[: len(part)]) if len(source) else part.fill_(1)


@torch.no_grad()
def deliver():
    """Write the results that have arrived into the tensors of the host."""
    while PENDING and DEVICE and DEVICE[0].is_done(*PENDING[0][:2]):
        _, _, results, targets, divisor = PENDING.popleft()
        for result, target in zip(results, targets, strict=True):
            # FSDP frees the memory of gathered parameters when it has used them.
            if target.untyped_storage().nbytes() >= result.untyped_storage().nbytes():
                target.detach().copy_(result / divisor if divisor > 1 else result)


DEVICE = []  # the device, once it is open

SHOWN = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "allgather": "all_gather",
    "_allgather_base": "_all_gather_base",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "scatter": "scatter",
}
"""Names of gloo's methods, and of the calls in NCCL's log."""

ALIASES = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
}


def _make_call(name, shown):
    def call(self, *arguments, **named):
        return self.queue(name, *arguments, *named.values(), shown=shown)

    return call


def _queue_barrier(self):
    # Not an all_reduce of gloo's: it aborts the process if another rank's all_reduce is larger.
    return self.queue("barrier", dist.BarrierOptions(), shown="all_reduce_barrier")


def _queue_send(self, tensors, peer, tag=0):
    return self.queue(
        "send", tensors, peer, tag, shown=f"send {self.rank()}->{peer}", transfer=True
    )


def _queue_recv(self, tensors, peer, tag=0):
    return self.queue(
        "recv", tensors, peer, tag, shown=f"recv {self.rank()}<-{peer}", transfer=True
    )


def give_methods(device):
    """Make the collectives methods of the class. A full queue blocks them without our frames."""
    DEVICE.append(device)
    calls = {name: _make_call(name, shown) for name, shown in SHOWN.items()}
    calls |= {alias: calls[name] for alias, name in ALIASES.items()}
    calls |= {"send": _queue_send, "recv": _queue_recv}
    for name, call in calls.items():
        setattr(QueuedGroup, name, as_method(device.with_room, call))

    class QueuedBarrier(Queued):
        """A queued barrier. `wait` blocks the host until the device has come to it."""

        wait = as_method(device.after_device, deliver, Queued.wait)

    def barrier(self, opts=None):
        work = _queue_barrier(self)
        work.wait()
        return QueuedBarrier(*work.queued, [])

    QueuedGroup.barrier = barrier
