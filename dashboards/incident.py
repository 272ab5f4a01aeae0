"""The dashboard of one incident: which ranks the verdict named, and what the job did around it."""

from __future__ import annotations

from dashboards.board import Annotation, Board, Variable, row
from dashboards.panels import (
    GREEN,
    RED,
    STATES,
    YELLOW,
    Column,
    Panel,
    Query,
    Text,
    dashboard_link,
    series,
    stat,
    table,
    timeline,
)

THIS = '{incident="$incident"}'
JOB = '{training_job="$training_job"}'
UNKNOWN = "The incident is not known in this time range"

OPEN = stat(
    Text("State", "Whether the incident is open now.", "none", "Closed or not known"),
    Query(f"max(watchtower_incident_open{THIS})"),
    values={0: ("closed", GREEN), 1: ("open", RED)},
)

AGE = stat(
    Text("Open for", "Time since the incident was opened, while it is open.", "s", "Not open"),
    Query(f"time() - max(watchtower_incident_opened_timestamp_seconds{THIS})"),
    thresholds={0: YELLOW, 900: RED},
)

ACKED = stat(
    Text("Acknowledged", "Whether an engineer acknowledged the open incident.", "none", "Not open"),
    Query(f"max(watchtower_incident_acked{THIS})"),
    values={0: ("no", YELLOW), 1: ("yes", GREEN)},
)

LOST = stat(
    Text(
        "GPU hours lost",
        "Hours that the job lost in hangs in the time range, times the number of its ranks now.",
        "h",
        "The job was not watched in this time range",
    ),
    Query(
        f"max(increase(watchtower_job_lost_seconds_total{JOB}[$__range])) / 3600"
        f" * max(watchtower_job_world_size{JOB})",
        instant=True,
    ),
    thresholds={1: YELLOW, 100: RED},
)

VERDICT = table(
    Text(
        "Verdict",
        "The current verdict while the incident is open, or else its verdicts in the time range.",
        "none",
        UNKNOWN,
    ),
    Query(f"""
max by (training_job, cause, rank, node, suspects, url) (
  watchtower_incident_info{THIS}
  or last_over_time(watchtower_incident_info{THIS}[$__range])
    unless on (incident) watchtower_incident_info{THIS}
)
"""),
    Column("training_job", "job", link=dashboard_link("job", training_job="training_job")),
    Column("cause", "cause"),
    Column("rank", "first rank"),
    Column("node", "node", link=dashboard_link("node", node="node")),
    Column("suspects", "ranks named"),
    Column("url", "verdict", link="${__data.fields.url}"),
)

IDENTITY = table(
    Text(
        "Whom to call",
        "What was known when the incident opened; it never changes.",
        "none",
        UNKNOWN,
    ),
    Query(f"""
max by (kind, domain, user, shared_cause) (
  last_over_time(watchtower_incident_open{THIS}[$__range])
)
"""),
    Column("kind", "kind"),
    Column("domain", "call"),
    Column("user", "user"),
    Column("shared_cause", "shared cause"),
)

SUSPECTS = table(
    Text(
        "Ranks named",
        "The first 16 ranks that verdicts on this incident named in the time range.",
        "none",
        "No rank was named in this time range",
    ),
    Query(f"""
max by (rank, node, gpu) (last_over_time(watchtower_incident_suspect{THIS}[$__range]))
"""),
    Column("rank", "rank"),
    Column("gpu", "GPU"),
    Column("node", "node", link=dashboard_link("node", node="node")),
)

VERDICTS = timeline(
    Text(
        "Verdict over time",
        "The first rank and the cause that the verdict named at each time.",
        "none",
        UNKNOWN,
    ),
    Query(
        f"max by (cause, rank, node) (watchtower_incident_info{THIS})",
        "rank {{rank}} on {{node}}: {{cause}}",
    ),
    values={1: ("named", RED)},
)

STATE = timeline(
    Text("Status of the job", "Status of the job of this incident.", "none", "The job has ended"),
    Query(f"max by (training_job) (watchtower_job_state{JOB})", "{{training_job}}"),
    values=STATES,
)

STEP = series(
    Text(
        "Step of the job",
        "Highest step that every rank with heartbeats has made.",
        "none",
        "The job is not known in this time range",
    ),
    Query(f"max(watchtower_job_step{JOB})", "step"),
)

LAG = series(
    Text(
        "Ranks by step lag",
        "Live ranks of the job by the number of steps that they are behind the first rank.",
        "none",
        "No rank of the job has heartbeats",
    ),
    Query(f"max by (lag) (watchtower_job_lag_ranks{JOB})", "{{lag}} steps"),
    stacked=True,
)

NODE_RANKS = series(
    Text(
        "Ranks on the named nodes",
        "Living ranks of all jobs on each node that a verdict named.",
        "none",
        "The agents of these nodes are not scraped",
    ),
    Query(
        f"""
max by (node) (watchtower_agent_ranks)
  and on (node) last_over_time(watchtower_incident_suspect{THIS}[$__range] @ end())
""",
        "{{node}}",
    ),
    stepped=True,
)

NAMED_GPUS = """
on (node, index) label_join(
  last_over_time(watchtower_incident_suspect{incident="$incident", gpu!=""}[$__range] @ end()),
  "index", "", "gpu"
)
"""
NAMED_NODES = f"on (node) last_over_time(watchtower_incident_suspect{THIS}[$__range] @ end())"
NO_GPU = "No GPU of a named rank is known"


def _named_gpus(title: str, description: str, unit: str, metric: str) -> Panel:
    """Return a panel with the GPUs of the named ranks, and the median GPU of their nodes."""
    return series(
        Text(title, description, unit, NO_GPU),
        Query(
            f"""
max by (node, index) (
  {metric} * on (node, gpu) group_left (index) max by (node, gpu, index) (watchtower_gpu_info)
)
  and {NAMED_GPUS.strip()}
""",
            "{{node}} GPU {{index}}",
        ),
        Query(f"quantile(0.5, {metric} and {NAMED_NODES})", "median of these nodes"),
    )


GPU_UTILIZATION = _named_gpus(
    "GPUs of the named ranks",
    "Share of the time in which a kernel is resident; a kernel that waits counts, too.",
    "percentunit",
    "watchtower_gpu_utilization_ratio",
)

GPU_POWER = _named_gpus(
    "Power of these GPUs",
    "Power of the GPUs of the named ranks; a GPU that waits draws little.",
    "watt",
    "watchtower_gpu_power_watts",
)

GPU_TENSOR = _named_gpus(
    "Tensor cores of these GPUs",
    "Use of the tensor cores; GPUs before Hopper do not count it.",
    "percentunit",
    "watchtower_gpu_tensor_active_ratio",
)

BOARD = Board(
    name="incident",
    title="watchtower / incident",
    description="One incident: which ranks the verdict named, and what the job did around it.",
    time_from="now-1h",
    variables=(
        Variable("incident", "Incident", "label_values(watchtower_incident_open, incident)"),
        Variable(
            "training_job",
            "Job",
            f"label_values(watchtower_incident_open{THIS}, training_job)",
            hidden=True,
        ),
    ),
    annotations=(
        Annotation(
            "Open",
            f"max by (incident, kind) (watchtower_incident_open{THIS}) == 1",
            "Incident {{incident}}",
            "{{kind}}",
            "red",
        ),
    ),
    rows=(
        row(4, (6, OPEN), (6, AGE), (6, ACKED), (6, LOST)),
        row(4, (24, VERDICT)),
        row(7, (8, IDENTITY), (8, SUSPECTS), (8, VERDICTS)),
        row(4, (24, STATE)),
        row(8, (8, STEP), (8, LAG), (8, NODE_RANKS)),
        row(8, (8, GPU_UTILIZATION), (8, GPU_POWER), (8, GPU_TENSOR)),
    ),
)
