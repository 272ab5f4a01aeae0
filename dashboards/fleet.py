"""The dashboard of all jobs: what is hung, and which rank and node hold it up."""

from __future__ import annotations

from dashboards.board import Board, row
from dashboards.panels import (
    RED,
    STATES,
    YELLOW,
    Column,
    Query,
    Text,
    bar_chart,
    bars,
    dashboard_link,
    series,
    stat,
    table,
    timeline,
)

NOT_SCRAPED = "The tower is not scraped"

OPEN_INCIDENTS = stat(
    Text(
        "Open incidents",
        "Incidents that are open now, acknowledged or not.",
        "none",
        NOT_SCRAPED,
    ),
    Query("count(max by (incident) (watchtower_incident_open) == 1) or vector(0)"),
    thresholds={1: RED},
)

HUNG_RANKS = stat(
    Text(
        "Ranks in hung jobs",
        "Ranks of all hung jobs.",
        "none",
        NOT_SCRAPED,
    ),
    Query("""
sum(
  max by (training_job) (watchtower_job_world_size)
  and on (training_job) max by (training_job) (watchtower_job_status{status="hung"}) == 1
) or vector(0)
"""),
    thresholds={1: RED},
)

LOST_HOURS = stat(
    Text(
        "GPU hours lost",
        "Hours lost in hangs in the time range, times the number of ranks.",
        "h",
        NOT_SCRAPED,
    ),
    Query("sum(increase(watchtower_lost_gpu_seconds_total[$__range])) / 3600", instant=True),
    thresholds={1: YELLOW, 100: RED},
)

LAST_DECISION = stat(
    Text("Last decision", "Seconds since the tower last checked all jobs.", "s", NOT_SCRAPED),
    Query("max(watchtower_tick_age_seconds)"),
    thresholds={5: RED},
)

AGENTS = stat(
    Text("Agents", "Agents that stopped reporting, and all known agents.", "none", NOT_SCRAPED),
    Query("max(watchtower_agents_silent)", "silent"),
    Query("max(watchtower_agents)", "all"),
)

HUNG_JOBS = table(
    Text(
        "Hung jobs",
        "Open incidents with the first rank that the current verdict names.",
        "none",
        "No incident is open",
    ),
    Query("""
max by (incident, training_job, cause, rank, node, url) (watchtower_incident_info)
  * on (incident) group_left (user, domain, kind)
    max by (incident, user, domain, kind) (watchtower_incident_open == 1)
  * on (incident) group_left ()
    max by (incident) (1000 * watchtower_incident_opened_timestamp_seconds)
"""),
    Column("training_job", "job", link=dashboard_link("job", training_job="training_job")),
    Column("user", "user"),
    Column("cause", "cause"),
    Column("rank", "rank"),
    Column("node", "node", link=dashboard_link("node", node="node")),
    Column("domain", "call"),
    Column("kind", "kind"),
    Column("Value", "since", unit="dateTimeFromNow"),
    Column("incident", "incident", link=dashboard_link("incident", incident="incident")),
    Column("url", "verdict", link="${__data.fields.url}"),
)

JOBS_OVER_TIME = timeline(
    Text(
        "Jobs over time",
        "Status of the 50 jobs with the worst status in the time range.",
        "none",
        "No live job in this time range",
    ),
    Query(
        """
max by (training_job) (watchtower_job_state)
  and on (training_job)
    topk(50, max by (training_job) (max_over_time(watchtower_job_state[$__range] @ end())))
""",
        "{{training_job}}",
    ),
    values=STATES,
)

JOBS_BY_STATUS = bars(
    Text("Jobs by status", "Number of jobs with each status now.", "none", NOT_SCRAPED),
    Query("max by (status) (watchtower_jobs)", "{{status}}"),
)

STEP_RATES = series(
    Text(
        "Step rate, slowest jobs",
        "Steps per typical step time of the 20 slowest jobs; 100 % and more is as usual.",
        "percentunit",
        "No job made steps in this time range",
    ),
    Query(
        """
max by (training_job) (rate(watchtower_job_steps_total[$__rate_interval]))
  * max by (training_job) (watchtower_job_typical_step_seconds)
  and on (training_job)
    bottomk(20,
      max by (training_job) (rate(watchtower_job_steps_total[$__range] @ end()))
        * max by (training_job) (watchtower_job_typical_step_seconds @ end())
    )
""",
        "{{training_job}}",
    ),
)

CAUSES = bar_chart(
    Text(
        "Incidents by cause",
        "Incidents opened in the time range, by the cause at the opening.",
        "none",
        "No incident was opened in this time range",
    ),
    Query("round(sum by (cause) (increase(watchtower_incidents_total[$__range]))) > 0"),
    "cause",
)

NODES = table(
    Text(
        "Nodes with most incidents",
        "The 10 nodes whose ranks were named in most incidents of the time range.",
        "none",
        "No incident named a node in this time range",
    ),
    Query("""
topk(10,
  count by (node) (
    count by (node, incident) (last_over_time(watchtower_incident_suspect[$__range]))
  )
)
"""),
    Column("node", "node", link=dashboard_link("node", node="node")),
    Column("Value", "incidents"),
)

BOARD = Board(
    name="fleet",
    title="watchtower / fleet",
    description="All training jobs: which are hung, and which rank and node hold them up.",
    rows=(
        row(
            4,
            (4, OPEN_INCIDENTS),
            (5, HUNG_RANKS),
            (5, LOST_HOURS),
            (5, LAST_DECISION),
            (5, AGENTS),
        ),
        row(8, (24, HUNG_JOBS)),
        row(10, (16, JOBS_OVER_TIME), (8, JOBS_BY_STATUS)),
        row(8, (10, STEP_RATES), (7, CAUSES), (7, NODES)),
    ),
)
