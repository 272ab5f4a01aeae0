"""A backend of torch.distributed that queues its collectives, as GPU libraries do.

`install` registers the backend "queued". A collective returns at once: gloo executes it later, in
the order of its stream, in a native thread. The host waits in a native library without a Python
frame: where it reads a tensor, at a barrier, or where too much work is queued.

Two things differ from a real device. Every tensor counts as a tensor of the device. The host
computes at once, with the values that it has: results of collectives arrive when it has waited.
"""

from queued.install import install

__all__ = ["install"]
