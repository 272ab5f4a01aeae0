"""The dashboard of watchtower itself: whether it decides, and what it costs."""

from __future__ import annotations

from dashboards.board import Board, row
from dashboards.panels import GREEN, RED, YELLOW, Query, Text, bars, series, stat

NOT_SCRAPED = "The tower is not scraped"
AGENTS_NOT_SCRAPED = "No agent is scraped"
OF_TOWER = "and on (instance, job) watchtower_build_info"
OF_AGENT = "and on (instance, job) watchtower_agent_build_info"
"""Only the processes of watchtower: other exporters have the same names."""


def per_second(name: str, by: str = "") -> str:
    """Return the rate of a counter over all towers or agents."""
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate({name}[$__rate_interval]))"


def slowest(name: str, by: str = "le") -> str:
    """Return the 99th percentile of a histogram."""
    return f"histogram_quantile(0.99, sum by ({by}) (rate({name}_bucket[$__rate_interval])))"


DECIDES = stat(
    Text("Last decision", "Seconds since the tower last checked all jobs.", "s", NOT_SCRAPED),
    Query("max(watchtower_tick_age_seconds)"),
    thresholds={5: RED},
)

STORES = stat(
    Text("Store", "Whether the tower can write incidents and dumps.", "none", NOT_SCRAPED),
    Query("max(watchtower_store_failing)"),
    values={0: ("writes", GREEN), 1: ("failing", RED)},
)

SET_ASIDE = stat(
    Text(
        "Stored data",
        "Whether this tower started with an empty store because the file was damaged.",
        "none",
        NOT_SCRAPED,
    ),
    Query("max(watchtower_store_set_aside)"),
    values={0: ("kept", GREEN), 1: ("set aside", RED)},
)

HIDDEN = stat(
    Text(
        "Without series",
        "Live jobs and open incidents beyond the limit; no alert fires for these incidents.",
        "none",
        NOT_SCRAPED,
    ),
    Query("max(watchtower_jobs_hidden)", "jobs"),
    Query("max(watchtower_incidents_hidden)", "incidents"),
    thresholds={1: RED},
)

KILLED = stat(
    Text(
        "Diagnoses ended",
        "Diagnoses in the time range that exceeded their limits and were ended.",
        "none",
        NOT_SCRAPED,
    ),
    Query("round(sum(increase(watchtower_diagnoses_killed_total[$__range])))", instant=True),
    thresholds={1: YELLOW, 6: RED},
)

FAILED = stat(
    Text("Failed checks", "Checks of a job in the time range that failed.", "none", NOT_SCRAPED),
    Query("round(sum(increase(watchtower_failed_ticks_total[$__range])))", instant=True),
    thresholds={1: RED},
)

ARRIVALS = series(
    Text(
        "Messages of agents",
        "Reports and batches of dumps that the tower accepted, per second.",
        "cps",
        NOT_SCRAPED,
    ),
    Query(per_second("watchtower_reports_total"), "reports"),
    Query(per_second("watchtower_dumps_total"), "dumps"),
)

REFUSED = series(
    Text(
        "Refused",
        "Refused requests by reason, per second.",
        "cps",
        NOT_SCRAPED,
    ),
    Query(per_second("watchtower_refused_requests_total", "reason"), "{{reason}}"),
)

UNWATCHED = series(
    Text(
        "Not watched",
        "Processes that seem to be ranks and are not watched, by reason.",
        "short",
        NOT_SCRAPED,
    ),
    Query("max by (reason) (watchtower_ranks_unwatched)", "{{reason}}"),
)

REPLIES = series(
    Text(
        "Reply to agents",
        "99th percentile of the time from a request to its reply, by path.",
        "s",
        NOT_SCRAPED,
    ),
    Query(slowest("watchtower_reply_seconds", "le, path"), "{{path}}"),
)

TICKS = series(
    Text("Check of all jobs", "Duration of the last check of all jobs.", "s", NOT_SCRAPED),
    Query("max(watchtower_tick_duration_seconds)", "check"),
    thresholds={0.5: RED},
)

DIAGNOSES = series(
    Text("Diagnoses", "Diagnoses made per second.", "cps", NOT_SCRAPED),
    Query(per_second("watchtower_diagnoses_total"), "diagnoses"),
)

DIAGNOSIS_TIME = series(
    Text(
        "Duration of a diagnosis",
        "99th percentile of the duration of a diagnosis, without the wait for its turn.",
        "s",
        "No diagnosis in this time range",
    ),
    Query(slowest("watchtower_diagnosis_duration_seconds"), "99 %"),
)

QUEUE = series(
    Text(
        "Queue of the store",
        "Writes and rows that are not stored yet.",
        "none",
        NOT_SCRAPED,
    ),
    Query("max(watchtower_store_queue_writes)", "writes"),
)

QUEUE_AGE = series(
    Text("Age of the queue", "Age of the oldest write that is not done.", "s", NOT_SCRAPED),
    Query("max(watchtower_store_queue_oldest_seconds)", "oldest"),
    thresholds={30: RED},
)

ACCOUNT = series(
    Text(
        "Memory for jobs and nodes",
        "Memory of jobs and nodes beyond one record per rank, with its limit of 256 MB.",
        "bytes",
        NOT_SCRAPED,
    ),
    Query("max(watchtower_stored_bytes)", "used"),
    thresholds={268435456: RED},
)

TOWER_CPU = series(
    Text("CPU of the tower", "Share of one core that the tower uses.", "percentunit", NOT_SCRAPED),
    Query(f"max(rate(process_cpu_seconds_total[$__rate_interval]) {OF_TOWER})", "tower"),
)

TOWER_MEMORY = series(
    Text("Memory of the tower", "Resident memory of the tower.", "bytes", NOT_SCRAPED),
    Query(f"max(process_resident_memory_bytes {OF_TOWER})", "tower"),
)

DESCRIPTORS = series(
    Text(
        "Open files of the tower",
        "Share of the allowed descriptors that the tower uses.",
        "percentunit",
        NOT_SCRAPED,
    ),
    Query(f"max(process_open_fds {OF_TOWER}) / max(process_max_fds {OF_TOWER})", "used"),
    thresholds={0.8: RED},
)

NO_DESTINATION = "The tower sends no alerts itself"

OUTBOX = series(
    Text(
        "Alerts not delivered",
        "Alerts whose current version a direct destination has not received yet.",
        "none",
        NO_DESTINATION,
    ),
    Query("max by (destination) (watchtower_outbox_waiting)", "{{destination}}"),
)

OUTBOX_AGE = series(
    Text(
        "Age of the oldest alert",
        "Seconds that the oldest alert has waited for its destination.",
        "s",
        NO_DESTINATION,
    ),
    Query("max by (destination) (watchtower_outbox_oldest_seconds)", "{{destination}}"),
    thresholds={120: RED},
)

DELIVERIES = series(
    Text(
        "Messages to destinations",
        "Messages that destinations accepted, and failed attempts, per second.",
        "cps",
        NO_DESTINATION,
    ),
    Query(per_second("watchtower_outbox_deliveries_total", "destination"), "{{destination}}"),
    Query(per_second("watchtower_outbox_failures_total", "destination"), "{{destination}} failed"),
)

VERSIONS = bars(
    Text("Agents by version", "Scraped agents by their version.", "none", AGENTS_NOT_SCRAPED),
    Query("count by (version) (watchtower_agent_build_info)", "{{version}}"),
)

AGENT_CPU = series(
    Text(
        "CPU of the busiest agents",
        "Share of one core that each of the 5 busiest agents uses.",
        "percentunit",
        AGENTS_NOT_SCRAPED,
    ),
    Query(
        f"topk(5, max by (node) (rate(process_cpu_seconds_total[$__rate_interval]) {OF_AGENT}))",
        "{{node}}",
    ),
)

AGENT_MEMORY = series(
    Text(
        "Memory of the largest agents",
        "Resident memory of each of the 5 largest agents.",
        "bytes",
        AGENTS_NOT_SCRAPED,
    ),
    Query(f"topk(5, max by (node) (process_resident_memory_bytes {OF_AGENT}))", "{{node}}"),
)

AGENT_DUMPS = series(
    Text(
        "Dumps by outcome",
        "Dumped ranks per second on all nodes, by outcome.",
        "cps",
        "No rank was dumped in this time range",
    ),
    Query(per_second("watchtower_agent_dumps_total", "outcome"), "{{outcome}}"),
)

AGENT_LOSSES = series(
    Text(
        "Lost on the way to the tower",
        "Reports not accepted and batches of dumps dropped, per second on all nodes.",
        "cps",
        AGENTS_NOT_SCRAPED,
    ),
    Query(per_second("watchtower_agent_report_failures_total"), "reports"),
    Query(per_second("watchtower_agent_dumps_dropped_total", "reason"), "dumps: {{reason}}"),
)

AGENT_LIMITS = bars(
    Text(
        "Limited agents",
        "Number of agents that cannot do a part of their work in full.",
        "none",
        AGENTS_NOT_SCRAPED,
    ),
    Query("sum by (source) (watchtower_agent_limited)", "{{source}}"),
    thresholds={1: RED},
)

BOARD = Board(
    name="self",
    title="watchtower / self",
    description="watchtower itself: whether it decides, what waits, and what it costs.",
    rows=(
        row(4, (4, DECIDES), (4, STORES), (4, SET_ASIDE), (4, HIDDEN), (4, KILLED), (4, FAILED)),
        row(8, (6, ARRIVALS), (6, REFUSED), (6, UNWATCHED), (6, REPLIES)),
        row(8, (8, TICKS), (8, DIAGNOSES), (8, DIAGNOSIS_TIME)),
        row(8, (8, QUEUE), (8, QUEUE_AGE), (8, ACCOUNT)),
        row(8, (8, TOWER_CPU), (8, TOWER_MEMORY), (8, DESCRIPTORS)),
        row(8, (8, OUTBOX), (8, OUTBOX_AGE), (8, DELIVERIES)),
        row(8, (8, VERSIONS), (8, AGENT_CPU), (8, AGENT_MEMORY)),
        row(8, (8, AGENT_DUMPS), (8, AGENT_LOSSES), (8, AGENT_LIMITS)),
    ),
)
