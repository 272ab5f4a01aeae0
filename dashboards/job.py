"""The dashboard of one job: its progress, its time lost, and where its ranks are."""

from __future__ import annotations

from dashboards.board import Annotation, Board, Variable, row
from dashboards.panels import (
    GREEN,
    RED,
    STATES,
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

THIS = '{training_job="$training_job"}'
UNKNOWN = "The job has ended or is not known"

STATUS = stat(
    Text("Status", "Status of the job now.", "none", UNKNOWN),
    Query(f"max(watchtower_job_state{THIS})"),
    values=STATES,
)

STEP = stat(
    Text("Step", "Highest step that every rank with heartbeats has made.", "none", UNKNOWN),
    Query(f"max(watchtower_job_step{THIS})"),
    sparkline=True,
)

STEPS_PER_MINUTE = stat(
    Text("Steps per minute", "Steps that all ranks have made in a minute.", "none", UNKNOWN),
    Query(f"60 * max(rate(watchtower_job_steps_total{THIS}[$__rate_interval]))"),
    sparkline=True,
)

USEFUL_TIME = stat(
    Text(
        "Time not lost in hangs",
        "Share of the watched time in the time range that was not lost in hangs.",
        "percentunit",
        "The job was not watched in this time range",
    ),
    Query(
        f"1 - max(increase(watchtower_job_lost_seconds_total{THIS}[$__range]))"
        f" / max(increase(watchtower_job_watched_seconds_total{THIS}[$__range]))",
        instant=True,
    ),
    thresholds={0: RED, 0.9: YELLOW, 0.98: GREEN},
)

LOST_HOURS = stat(
    Text(
        "GPU hours lost",
        "Hours lost in hangs in the time range, times the number of ranks now.",
        "h",
        "The job was not watched in this time range",
    ),
    Query(
        f"max(increase(watchtower_job_lost_seconds_total{THIS}[$__range])) / 3600"
        f" * max(watchtower_job_world_size{THIS})",
        instant=True,
    ),
    thresholds={1: YELLOW, 100: RED},
)

SUSPECTS = stat(
    Text(
        "Ranks named",
        "Number of ranks that the current verdict names.",
        "none",
        UNKNOWN,
    ),
    Query(f"max(watchtower_job_suspects{THIS})"),
    thresholds={1: RED},
)

VERDICT = table(
    Text(
        "Open incident",
        "The first rank that the current verdict names, and why.",
        "none",
        "The job has no open incident",
    ),
    Query(f"""
max by (incident, cause, rank, node, suspects, url) (watchtower_incident_info{THIS})
  * on (incident) group_left (domain, kind)
    max by (incident, domain, kind) (watchtower_incident_open{THIS} == 1)
  * on (incident) group_left ()
    max by (incident) (1000 * watchtower_incident_opened_timestamp_seconds{THIS})
"""),
    Column("cause", "cause"),
    Column("rank", "rank"),
    Column("node", "node", link=dashboard_link("node", node="node")),
    Column("suspects", "ranks named"),
    Column("domain", "call"),
    Column("kind", "kind"),
    Column("Value", "since", unit="dateTimeFromNow"),
    Column("incident", "incident", link=dashboard_link("incident", incident="incident")),
    Column("url", "verdict", link="${__data.fields.url}"),
)

LABELS = table(
    Text(
        "Job",
        "Names that the scheduler gave to the job, from the environment of its ranks.",
        "none",
        "The scheduler of the job is not known",
    ),
    Query(f"""
max by (scheduler, scheduler_id, name, user, partition, namespace) (watchtower_job_info{THIS})
"""),
    Column("user", "user"),
    Column("scheduler", "scheduler"),
    Column("scheduler_id", "id"),
    Column("name", "name"),
    Column("partition", "partition"),
    Column("namespace", "namespace"),
)

STATE = timeline(
    Text("Status over time", "Status of the job.", "none", UNKNOWN),
    Query(f"max by (training_job) (watchtower_job_state{THIS})", "{{training_job}}"),
    values=STATES,
)

STEP_TIME = series(
    Text(
        "Step time",
        "Median and 95th percentile of the latest steps, and the typical step time.",
        "s",
        "The job made no steps in this time range",
    ),
    Query(f"max by (percentile) (watchtower_job_step_seconds{THIS})", "percentile {{percentile}}"),
    Query(f"max(watchtower_job_typical_step_seconds{THIS})", "typical"),
)

RATE = series(
    Text(
        "Steps per minute over time",
        "Steps that all ranks have made in a minute; 0 is no progress.",
        "none",
        "The job was not watched in this time range",
    ),
    Query(f"60 * max(rate(watchtower_job_steps_total{THIS}[$__rate_interval]))", "steps"),
)

LAG = series(
    Text(
        "Ranks by step lag",
        "Live ranks by the number of steps that they are behind the first rank.",
        "none",
        "No rank of the job has heartbeats",
    ),
    Query(f"max by (lag) (watchtower_job_lag_ranks{THIS})", "{{lag}} steps"),
    stacked=True,
)

PLACES = series(
    Text(
        "Ranks by place",
        "In a stall, ranks that wait, that wait for their devices, and that are elsewhere.",
        "none",
        UNKNOWN,
    ),
    Query(f"max by (place) (watchtower_job_ranks{THIS})", "{{place}}"),
    stacked=True,
)

PHASES = series(
    Text(
        "Ranks by phase",
        "Live ranks by phase, where training is outside all phases.",
        "none",
        "No rank of the job has heartbeats",
    ),
    Query(f"max by (phase) (watchtower_job_phase_ranks{THIS})", "{{phase}}"),
    stacked=True,
)

WAITS = series(
    Text(
        "Ranks that wait least",
        "Share of samples in which the ranks that slow down the job, and the median rank, waited.",
        "percentunit",
        "The job is not slow",
    ),
    Query(f"max by (rank) (watchtower_rank_wait_ratio{THIS})", "rank {{rank}}"),
    Query(f"max(watchtower_job_wait_ratio{THIS})", "median"),
)

EVIDENCE = bars(
    Text(
        "Evidence",
        "Share of the ranks that report and have heartbeats, and of which a stall has the others.",
        "percentunit",
        UNKNOWN,
    ),
    Query(f"min by (source) (watchtower_job_evidence_ratio{THIS})", "{{source}}"),
    thresholds={0: RED, 0.9: YELLOW, 1: GREEN},
    highest=1,
)

SIZE = series(
    Text(
        "World size and attempt",
        "Number of ranks of the job, and number of its attempt from 1.",
        "none",
        UNKNOWN,
    ),
    Query(f"max(watchtower_job_world_size{THIS})", "ranks"),
    Query(f"max(watchtower_job_attempt{THIS})", "attempt"),
    stepped=True,
)

BOARD = Board(
    name="job",
    title="watchtower / job",
    description="One training job: its progress, its time lost, and where its ranks are.",
    variables=(
        Variable("training_job", "Job", "label_values(watchtower_job_status, training_job)"),
    ),
    annotations=(
        Annotation(
            "Incidents",
            f"max by (incident, kind) (watchtower_incident_open{THIS}) == 1",
            "Incident {{incident}}",
            "{{kind}}",
            "red",
        ),
        Annotation(
            "Attempts",
            f"max by (training_job) (changes(watchtower_job_attempt{THIS}[$__rate_interval])) > 0",
            "New attempt",
            "{{training_job}}",
            "blue",
        ),
    ),
    rows=(
        row(
            4,
            (4, STATUS),
            (4, STEP),
            (4, STEPS_PER_MINUTE),
            (4, USEFUL_TIME),
            (4, LOST_HOURS),
            (4, SUSPECTS),
        ),
        row(5, (24, VERDICT)),
        row(4, (24, STATE)),
        row(8, (12, RATE), (12, STEP_TIME)),
        row(8, (8, LAG), (8, PLACES), (8, PHASES)),
        row(8, (12, WAITS), (12, SIZE)),
        row(6, (12, EVIDENCE), (12, LABELS)),
    ),
)
