"""Where the host reads a tensor, it waits for the device first, in native code."""

import functools

import torch
from torch.autograd import Variable

from queued.library import as_method, load_with_gil, take_builtin
from queued.process_group import deliver

READS = (
    *("item", "tolist", "cpu", "numpy", "nonzero", "unique"),
    *("__bool__", "__float__", "__int__", "__index__"),
)


def make_sum(device, inner):
    """Return torch.sum that waits for integers: torch adds up the sizes of objects before it reads
    the sum.
    """

    def sum_when_known(values, *arguments, **named):
        if values.dtype is torch.int64:
            return device.after_device(deliver, inner, values, *arguments, **named)
        return inner(values, *arguments, **named)

    return sum_when_known


def install_reads(device):
    torch.sum = make_sum(device, torch.sum)
    for name in READS:
        read = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, as_method(device.after_device, deliver, read))


class Engine:
    """Replaces the engine of autograd: another thread waits for the device, main sleeps."""

    def __init__(self, device):
        library = load_with_gil("libtorch_cpu.so")
        library.engine_open(device.address("host_wait_for_room"), device.address("host_delegate"))
        run, inner = take_builtin(library, 0), Variable._execution_engine
        self.run_backward = functools.partial(run, inner.run_backward)
        self.queue_callback = inner.queue_callback
        self.is_checkpoint_valid = inner.is_checkpoint_valid


def install_engine(device):
    Variable._execution_engine = Engine(device)
