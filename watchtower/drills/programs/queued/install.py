"""Registers the backend."""

import torch.distributed as dist

from queued.host_reads import install_engine, install_reads
from queued.library import Device
from queued.process_group import QueuedGroup, give_methods
from queued.recorder import Recorder, install_recorder

LAUNCHES = 6  # queued before the host waits
CAPTURED = 40  # calls recorded before a log is frozen


def install(
    *,
    schedule="spin",
    depth=LAUNCHES,
    log="nccl",
    helper=True,
    engine_thread=False,
    captured=CAPTURED,
):
    """Register the backend "queued", and return its device."""
    device = Device(schedule, depth, helper)
    recorder = Recorder(device, log, captured)
    give_methods(device)
    install_reads(device)
    install_recorder(recorder)
    if engine_thread:
        install_engine(device)

    def make_group(options, _):
        return QueuedGroup(device, recorder, options)

    dist.Backend.register_backend("queued", make_group, extended_api=True, devices=["cpu"])
    return device
