"""Which tests under load to run on this node, and what to expect of its hardware. None is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agent.collectors.gpu.metrics import NVLINKS
from agent.collectors.infiniband import RATE
from agent.collectors.infiniband import UP as PORT_UP
from agent.doctor.check import Seen
from agent.doctor.devices import name_gpus


class ActiveTest(NamedTuple):
    """A command to run while no job runs, and what it should print."""

    command: str
    expect: str


BUS_GB_S = {"A100": 230, "H100": 450, "H200": 450}
"""By model: bus bandwidth of a large all_reduce over the 8 GPUs of a node with NVSwitches, in GB/s.
Published results of nccl-tests (230 to 250, and 460 to 480 with NVLink SHARP), rounded down."""

WITHOUT_SWITCHES = ("PCI", "NVL")
"""In the names of models that have no NVSwitch: at most a bridge between some GPUs."""

SHARE_OF_RATE = 0.92
"""Share of the rate of a port that large RDMA writes reach; the rest is headers."""

SHARE_ACROSS = 0.85
"""Share of the rates of all ports that a large all_reduce reaches between nodes."""

BITS = 8
USUAL_GPUS = 8
"""GPUs of the nodes whose results are known."""

WITHOUT_NVLINK_GB_S = 20
"""Bus bandwidth between GPUs that have PCIe 4 with 16 lanes only, in GB/s."""


def list_tests(seen: Seen) -> Iterator[ActiveTest]:
    """Yield the tests for the hardware that was seen."""
    models = name_gpus(seen)
    rates = [
        rate for port, rate in seen.values(RATE).items() if rate and seen.values(PORT_UP).get(port)
    ]
    if len(models) > 1:
        yield ActiveTest(
            f"all_reduce_perf -b 1G -e 8G -f 2 -g {len(models)}", _expect_inside(seen, models)
        )
    if models and rates:
        expected = SHARE_ACROSS * sum(rates) / BITS
        yield ActiveTest(
            f"srun -N2 --ntasks-per-node={len(models)} all_reduce_perf_mpi -b 1G -e 8G -f 2 -g 1",
            f"busbw of at least {expected:.0f} GB/s at 8 GB with GPUDirect RDMA",
        )
    for (port, *_), rate in seen.values(RATE).items():
        if rate and seen.values(PORT_UP).get((port,)):
            card = port.partition("/")[0]
            yield ActiveTest(
                f"ib_write_bw -d {card} -F --report_gbits OTHER_NODE  (there: without a name)",
                f"at least {SHARE_OF_RATE * rate:.0f} Gbit/s",
            )


def _expect_inside(seen: Seen, models: list[str]) -> str:
    has_links = any(n for (_, state), n in seen.values(NVLINKS).items() if state == "up")
    known = next((gb for name, gb in BUS_GB_S.items() if name in models[0]), None)
    has_switches = not any(word in models[0] for word in WITHOUT_SWITCHES)
    if not has_links:
        return f"busbw of about {WITHOUT_NVLINK_GB_S} GB/s at 8 GB: no NVLink was seen"
    if known is None or len(models) != USUAL_GPUS or not has_switches:
        return "busbw of about the same as on other nodes of this kind"
    return f"busbw of at least {known} GB/s at 8 GB"
