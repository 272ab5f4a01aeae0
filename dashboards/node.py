"""The dashboard of one node: its agent, what the agent cannot do, and incidents on the node."""

from __future__ import annotations

from dashboards import gpus
from dashboards.board import Board, Variable, row
from dashboards.gpus import NOT_SCRAPED, THIS
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Column,
    Query,
    Text,
    bars,
    dashboard_link,
    series,
    stat,
    table,
    timeline,
)

OF_AGENT = f"and on (instance, job) watchtower_agent_build_info{THIS}"
"""Only the processes of agents: other exporters have the same names."""

REPORTING = stat(
    Text(
        "Agent",
        "Whether the tower receives the reports of this agent.",
        "none",
        "The tower is not scraped",
    ),
    Query(
        f"max(watchtower_agent_silent{THIS}) or 0 * max(watchtower_agents)",
    ),
    values={0: ("reports", GREEN), 1: ("silent", RED)},
)

RANKS = stat(
    Text("Ranks", "Living ranks that the agent watches.", "none", NOT_SCRAPED),
    Query(f"max(watchtower_agent_ranks{THIS})"),
    sparkline=True,
)

INCIDENTS = stat(
    Text(
        "Incidents",
        "Incidents in the time range whose verdict named a rank on this node.",
        "none",
        "The tower is not scraped",
    ),
    Query(
        f"count(count by (incident) (last_over_time(watchtower_incident_suspect{THIS}[$__range])))"
        " or vector(0)",
        instant=True,
    ),
    thresholds={1: YELLOW, 3: RED},
)

WAITING = stat(
    Text(
        "Dumps waiting",
        "Batches of dumps that the tower has not received yet.",
        "none",
        NOT_SCRAPED,
    ),
    Query(f"max(watchtower_agent_dumps_waiting{THIS})"),
    thresholds={10: YELLOW, 100: RED},
)

ABOUT = table(
    Text("About the agent", "Versions of the agent, Python and the kernel.", "none", NOT_SCRAPED),
    Query(f"max by (node, version, python_version, kernel) (watchtower_agent_info{THIS})"),
    Column("node", "node"),
    Column("version", "version"),
    Column("python_version", "Python"),
    Column("kernel", "kernel"),
)

NAMED = table(
    Text(
        "Incidents on this node",
        "Incidents of the time range whose verdict named a rank on this node.",
        "none",
        "No incident named this node in this time range",
    ),
    Query(f"""
max by (incident, rank) (last_over_time(watchtower_incident_suspect{THIS}[$__range]))
  * on (incident) group_left (training_job, kind, domain)
    (0 * max by (incident, training_job, kind, domain) (
      last_over_time(watchtower_incident_open[$__range])
    ) + 1)
"""),
    Column("training_job", "job", link=dashboard_link("job", training_job="training_job")),
    Column("rank", "rank"),
    Column("kind", "kind"),
    Column("domain", "call"),
    Column("incident", "incident", link=dashboard_link("incident", incident="incident")),
)

LIMITS = timeline(
    Text(
        "What the agent cannot do",
        "Parts of its work that the agent cannot do in full; its log contains the reason.",
        "none",
        NOT_SCRAPED,
    ),
    Query(f"max by (source) (watchtower_agent_limited{THIS})", "{{source}}"),
    values={0: ("works", GREEN), 1: ("limited", RED)},
)

RANKS_OVER_TIME = series(
    Text("Ranks over time", "Living ranks that the agent watches.", "none", NOT_SCRAPED),
    Query(f"max(watchtower_agent_ranks{THIS})", "ranks"),
    stepped=True,
)

LIMITED = series(
    Text(
        "Ranks stopped by CPU limits",
        "Ranks that a CPU limit stopped in a quarter of its periods or more.",
        "none",
        NOT_SCRAPED,
    ),
    Query(f"max(watchtower_cpu_limited_ranks{THIS})", "ranks"),
    stepped=True,
)

DUMPS = series(
    Text(
        "Dumps by outcome",
        "Dumped ranks per second, by outcome.",
        "cps",
        "The agent dumped no rank in this time range",
    ),
    Query(
        f"sum by (outcome) (rate(watchtower_agent_dumps_total{THIS}[$__rate_interval]))",
        "{{outcome}}",
    ),
)

FAILURES = series(
    Text(
        "Lost on the way to the tower",
        "Reports not accepted by the tower and batches of dumps dropped, per second.",
        "cps",
        NOT_SCRAPED,
    ),
    Query(f"sum(rate(watchtower_agent_report_failures_total{THIS}[$__rate_interval]))", "reports"),
    Query(
        f"sum by (reason) (rate(watchtower_agent_dumps_dropped_total{THIS}[$__rate_interval]))",
        "dumps: {{reason}}",
    ),
)

CHECKS = series(
    Text(
        "Duration of a check",
        "99th percentile of the duration of one check of all ranks.",
        "s",
        NOT_SCRAPED,
    ),
    Query(
        "histogram_quantile(0.99, sum by (le)"
        f" (rate(watchtower_agent_tick_duration_seconds_bucket{THIS}[$__rate_interval])))",
        "99 %",
    ),
)

CPU = series(
    Text("CPU of the agent", "Share of one core that the agent uses.", "percentunit", NOT_SCRAPED),
    Query(f"max(rate(process_cpu_seconds_total[$__rate_interval]) {OF_AGENT})", "agent"),
)

MEMORY = series(
    Text("Memory of the agent", "Resident memory of the agent.", "bytes", NOT_SCRAPED),
    Query(f"max(process_resident_memory_bytes {OF_AGENT})", "agent"),
)

OOM_KILLS = series(
    Text(
        "OOM kills",
        "Processes that the kernel ended because memory ran out, since boot.",
        "none",
        "The kernel log of this node is not read",
    ),
    Query(f"max(watchtower_oom_kills_total{THIS})", "killed"),
    stepped=True,
)

NO_DEVICE = "No network interface of this node is a device, or the agent is not scraped"

NICS = table(
    Text("Network interfaces", "The MTU of each interface; 0 without a link.", "bytes", NO_DEVICE),
    Query(f"max by (nic) (watchtower_nic_mtu_bytes{THIS} * watchtower_nic_up{THIS})"),
    Column("nic", "interface"),
    Column("Value", "MTU"),
)

NIC_BYTES = series(
    Text("Network traffic", "Bytes a second of each network interface.", "Bps", NO_DEVICE),
    Query(
        f"max by (nic, direction) (rate(watchtower_nic_bytes_total{THIS}[$__rate_interval]))",
        "{{nic}} {{direction}}",
    ),
)

NIC_ERRORS = series(
    Text(
        "Network errors",
        "Errors and drops a second of each network interface; single drops are ordinary.",
        "cps",
        NO_DEVICE,
    ),
    Query(
        f"max by (nic, kind) (rate(watchtower_nic_errors_total{THIS}[$__rate_interval])) > 0",
        "{{nic}} {{kind}}",
    ),
)

SHM = series(
    Text("Shared memory", "Used share of /dev/shm of the node.", "percentunit", NOT_SCRAPED),
    Query(f"max(watchtower_shm_used_ratio{THIS})", "used"),
)

MEMORY_LIMIT = series(
    Text(
        "Memory limit",
        "Largest used share of a memory limit of the ranks; freeable pages of files do not count.",
        "percentunit",
        "No rank of this node has a memory limit",
    ),
    Query(f"max(watchtower_memory_limit_used_ratio{THIS})", "used"),
)

PRESSURE = series(
    Text(
        "Pressure",
        "Share of the last 10 s in which processes waited for CPU, memory or block devices.",
        "percentunit",
        "The kernel of this node does not measure pressure",
    ),
    Query(
        f"max by (resource, kind) (watchtower_pressure_ratio{THIS})",
        "{{resource}} {{kind}}",
    ),
)

FRESH = bars(
    Text(
        "Age of each source",
        "Seconds since a collector of the agent last read its source.",
        "s",
        NOT_SCRAPED,
    ),
    Query(
        f"max by (source) (time() - watchtower_agent_source_last_success_timestamp_seconds{THIS})",
        "{{source}}",
    ),
    thresholds={45: RED},
)

BOARD = Board(
    name="node",
    title="watchtower / node",
    description="One node: its agent, what the agent cannot do, and incidents on the node.",
    variables=(Variable("node", "Node", "label_values(watchtower_agent_info, node)"),),
    rows=(
        row(4, (6, REPORTING), (6, RANKS), (6, INCIDENTS), (6, WAITING)),
        row(7, (14, NAMED), (10, ABOUT)),
        row(7, (8, LIMITS), (8, RANKS_OVER_TIME), (8, LIMITED)),
        row(7, (11, gpus.PATTERN), (3, gpus.COUNT), (10, gpus.GPUS)),
        row(7, (8, gpus.UTILIZATION), (8, gpus.POWER), (8, gpus.CALLS)),
        row(7, (8, gpus.UNITS), (8, gpus.CLOCKS), (8, gpus.HEAT)),
        row(7, (16, gpus.SLOWED), (8, gpus.NVLINK)),
        row(7, (8, gpus.ERRORS), (8, gpus.HEALTH), (8, gpus.STUCK)),
        row(7, (14, gpus.XIDS), (10, OOM_KILLS)),
        row(7, (8, NICS), (8, NIC_BYTES), (8, NIC_ERRORS)),
        row(7, (8, MEMORY_LIMIT), (8, SHM), (8, PRESSURE)),
        row(8, (12, DUMPS), (12, FAILURES)),
        row(8, (6, FRESH), (6, CHECKS), (6, CPU), (6, MEMORY)),
    ),
)
