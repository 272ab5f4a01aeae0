"""The metrics of the agent. docs/metrics.md has the same table: `make docs` writes it."""

from __future__ import annotations

from agent.collectors.node import make_collectors
from watchtower.service.metric_spec import MetricSpec, counter, gauge, histogram

RANKS = gauge("watchtower_agent_ranks", "", "Living ranks that are watched on this node.")
REPORT_FAILURES = counter(
    "watchtower_agent_report_failures_total", "", "Reports that the tower did not accept."
)
DUMPS = counter(
    "watchtower_agent_dumps_total",
    "outcome",
    "Dumped ranks, by outcome: ok, or the kind of failure. The processes of one user can increase "
    "the failures, so a high number does not mean that the node is broken.",
)
DUMPS_WAITING = gauge(
    "watchtower_agent_dumps_waiting",
    "",
    "Batches of dumps that the tower has not received yet, in memory or in the spool.",
)
DUMPS_DROPPED = counter(
    "watchtower_agent_dumps_dropped_total",
    "reason",
    "Batches of dumps that will never reach the tower, by reason: full, refused, too_old, damaged.",
)
TICK_DURATION = histogram(
    "watchtower_agent_tick_duration_seconds", "", "Duration of one check of all ranks."
)
LIMITED = gauge(
    "watchtower_agent_limited",
    "source",
    "1 if the agent cannot do all of this on its node, by source: python_stacks, process, "
    "spool, owners, collectors, native_places. The log of the agent and `/readyz` of the "
    "tower contain the reason.",
)
SOURCE_LAST_SUCCESS = gauge(
    "watchtower_agent_source_last_success_timestamp_seconds",
    "source",
    "Time at which a collector last read its source, such as kernel_log.",
)
NODE_PROBLEM = gauge(
    "watchtower_node_problem",
    "gpu problem",
    "1 while the agent sees this problem of its node, then 0. The last value stays while the agent "
    "cannot read the source of the problem, for example because the driver hangs. Problems: "
    "gpu_lost, gpus_missing, recovery_recommended, uncorrected_memory_errors (in the last 15 "
    "minutes), row_remapping (it waits for a reset, or has failed), nvlinks_lost, "
    "fabric_not_ready, fabric_manager_down, orphan_on_gpu (a process whose job has ended), "
    "shm_full. `gpu` is the PCI address, or gpu:N without one; empty for a problem of the whole "
    "node.",
)
INFO = gauge(
    "watchtower_agent_info", "version python_version kernel", "Always 1. It describes the agent."
)
BUILD_INFO = gauge("watchtower_agent_build_info", "version", "Always 1.")

_OF_COLLECTORS = tuple(spec for each in make_collectors("/") for spec in each.metrics)

AGENT_METRICS: tuple[MetricSpec, ...] = (
    *(each for each in tuple(globals().values()) if isinstance(each, MetricSpec)),
    *_OF_COLLECTORS,
)
"""All metrics of the agent, in the order of the documentation."""
