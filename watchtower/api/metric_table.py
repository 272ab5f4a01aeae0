"""The metrics of the tower. docs/metrics.md has the same table: `make docs` writes it."""

from __future__ import annotations

from watchtower.service.metric_spec import MetricSpec, counter, gauge, histogram
from watchtower.wire.report import LABELS

JOB_STATUS = gauge(
    "watchtower_job_status",
    "training_job status",
    "1 for the current status of the job, 0 for all other statuses. `not_judged` is healthy by "
    "default: too little is known of the job yet.",
)
JOB_STATE = gauge(
    "watchtower_job_state",
    "training_job",
    "The status as a number: -1 not_judged, 0 healthy, 1 recovered, 2 suspended, 3 slow, "
    "4 monitoring_lost, 5 suspect, 6 hung. A job that has ended has no such series.",
)
JOB_STEP = gauge(
    "watchtower_job_step",
    "training_job",
    "Highest step that every rank with heartbeats has made; -1 before the first.",
)
JOB_STEPS = counter(
    "watchtower_job_steps_total",
    "training_job",
    "Steps that every rank with heartbeats has made. Steps that a later attempt makes again count "
    "again.",
)
JOB_TYPICAL_STEP = gauge(
    "watchtower_job_typical_step_seconds",
    "training_job",
    "95th percentile of the duration of steps, without pauses.",
)
JOB_STEP_SECONDS = gauge(
    "watchtower_job_step_seconds",
    "training_job percentile",
    "Median (50) and 95th percentile (95) of the latest 30 samples of the duration of a step, "
    "without pauses. A sample is the median of all ranks that stepped within 0.5 s.",
)
JOB_WORLD_SIZE = gauge("watchtower_job_world_size", "training_job", "Number of ranks of the job.")
JOB_ATTEMPT = gauge(
    "watchtower_job_attempt", "training_job", "Number of the current attempt, from 1."
)
JOB_LAG_RANKS = gauge(
    "watchtower_job_lag_ranks",
    "training_job lag",
    "Live ranks by the number of steps that they are behind the first rank: 0, 1, 2-4, 5-9, 10+. "
    "Ranks without heartbeats do not count.",
)
JOB_PHASE_RANKS = gauge(
    "watchtower_job_phase_ranks",
    "training_job phase",
    "Live ranks by phase; `training` is outside all phases. The first 8 phases of a job have "
    "series, all others are `other`.",
)
JOB_RANKS = gauge(
    "watchtower_job_ranks",
    "training_job place",
    "Ranks by place. `working`: live ranks while the job makes steps. In a stall, by the last "
    "diagnosis: `waiting` for other ranks, `device` (they wait for their devices), `elsewhere`. "
    "`ended`: the process has ended. `unseen`: not reported, or without a stack in a stall.",
)
JOB_WATCHED = counter(
    "watchtower_job_watched_seconds_total",
    "training_job",
    "Seconds in which the job was watched. Time in which it was suspended, had ended or was not "
    "reported does not count.",
)
JOB_LOST = counter(
    "watchtower_job_lost_seconds_total",
    "training_job",
    "Watched seconds that were lost in hangs, each from the last step to the next one. Slow steps "
    "and pauses without an incident do not count.",
)
JOB_SUSPECTS = gauge(
    "watchtower_job_suspects", "training_job", "Number of ranks that the current verdict names."
)
JOB_SILENCED = gauge(
    "watchtower_job_silenced",
    "training_job",
    "1 while the job or its user is silenced (`watchtower silence`), or, if the job is slow, the "
    "node that slows it down.",
)
JOB_SHADOW = gauge(
    "watchtower_job_shadow",
    "training_job",
    "1 while no alert is sent about slow steps of the job, because its tower or the cause of the "
    "slow steps is in shadow mode.",
)
JOB_INFO = gauge(
    "watchtower_job_info",
    f"training_job {' '.join(LABELS)}",
    "Always 1, for jobs with known labels. The labels come from the environment of the ranks. For "
    "example, `name` is the name that the job has in Slurm.",
)
JOB_EVIDENCE = gauge(
    "watchtower_job_evidence_ratio",
    "training_job source",
    "Share of the ranks from which this source of evidence comes, 0 to 1. `process`: agents report "
    "the rank, of all ranks of the job. `heartbeat`: it has heartbeats, of the reported ranks. "
    "`stacks`, only while the job makes no steps: its stacks are in, of the reported ranks. By the "
    "last diagnosis of a stall, of the live ranks: `native` (the native code of its thread is "
    "known, or the thread sleeps), `collective_log`, `gpu` (what its GPU does; not for a job on "
    "nodes without GPUs), `kernel_log` (its agent reads it). Not for a job that has ended.",
)
JOB_WAIT_RATIO = gauge(
    "watchtower_job_wait_ratio",
    "training_job percentile",
    "Share of samples in which the median rank (50) waited for other ranks, 0 to 1. Only while "
    "the job is slow and its ranks are sampled.",
)
RANK_WAIT_RATIO = gauge(
    "watchtower_rank_wait_ratio",
    "training_job rank",
    "Share of samples in which a rank waited for other ranks, 0 to 1. Only for the ranks that slow "
    "down the job by the current verdict, at most 16: these wait least.",
)

JOB_METRICS: tuple[MetricSpec, ...] = tuple(
    each for each in tuple(globals().values()) if isinstance(each, MetricSpec)
)

INCIDENT_OPEN = gauge(
    "watchtower_incident_open",
    "incident training_job shared_cause kind domain user",
    "1 while the incident is open, 0 for ten minutes after it was closed.",
)
SHADOW_INCIDENT_OPEN = gauge(
    "watchtower_shadow_incident_open",
    "incident training_job shared_cause kind domain user",
    "The same for incidents in shadow mode, which `watchtower_incident_open` does not contain.",
)
INCIDENT_ENDED = gauge(
    "watchtower_incident_ended",
    "incident training_job shared_cause kind domain user",
    "1 for ten minutes after a job has ended because of a node, a GPU or the network (`domain`).",
)
INCIDENT_ACKED = gauge(
    "watchtower_incident_acked",
    "incident training_job",
    "1 while an open incident is acknowledged (`watchtower ack`).",
)
INCIDENT_SILENCED = gauge(
    "watchtower_incident_silenced",
    "incident training_job",
    "1 while the job, the user or the blamed node of an open incident is silenced.",
)
INCIDENT_OPENED = gauge(
    "watchtower_incident_opened_timestamp_seconds",
    "incident training_job",
    "Time at which an open incident was opened.",
)
INCIDENT_INFO = gauge(
    "watchtower_incident_info",
    "incident training_job cause rank node suspects url",
    "Always 1. The labels describe the current verdict of an incident that is open, or of one that "
    "`watchtower_incident_ended` contains.",
)

INCIDENT_SUSPECT = gauge(
    "watchtower_incident_suspect",
    "incident rank node gpu",
    "Always 1, for each of the first 16 ranks that the verdict on an open incident names. `gpu` is "
    "the number of its GPU in NVML; empty if that is not known.",
)

JOBS = gauge(
    "watchtower_jobs", "status", "Live jobs with this status, including those without series."
)
JOBS_HIDDEN = gauge("watchtower_jobs_hidden", "", "Live jobs without series.")
INCIDENTS_HIDDEN = gauge(
    "watchtower_incidents_hidden",
    "",
    "Open incidents without series, except those in shadow mode. Alerts do not fire for them.",
)
OUTAGES = gauge(
    "watchtower_outages",
    "",
    "Outages with an open incident: two or more incidents with one shared cause that opened within "
    "two minutes. An outage whose open incidents are all in shadow mode does not count.",
)
ADVISORIES = gauge(
    "watchtower_advisories",
    "advisory level",
    "Jobs and nodes with this advisory (`watchtower advisories` lists them), without silenced ones "
    "and drills. They open no incident. `level`: fatal, suspicious.",
)
NODE_INCIDENTS = gauge(
    "watchtower_node_incidents",
    "node window",
    "Incidents of the last 7 or 30 days (`window`: 7d, 30d) in which all ranks that were named are "
    "on this node, and whose `domain` is node, gpu or network. The 64 nodes with the most.",
)
VERDICT_FEEDBACK = gauge(
    "watchtower_verdict_feedback",
    "cause right",
    'Incidents about whose verdict people answered "was this right?", by the cause of the verdict '
    "and by their newest answer (`right`: true, false). Not of drills.",
)
AGENTS = gauge("watchtower_agents", "", "Known agents.")
AGENTS_SILENT = gauge("watchtower_agents_silent", "", "Known agents that stopped reporting.")
AGENT_SILENT = gauge(
    "watchtower_agent_silent",
    "node",
    "Always 1, for agents that stopped reporting: the 16 that reported last.",
)
STORE_FAILING = gauge(
    "watchtower_store_failing",
    "",
    "1 while incidents and dumps cannot be written; `/readyz` contains the reason.",
)
STORE_SET_ASIDE = gauge(
    "watchtower_store_set_aside",
    "",
    "1 if this tower started with an empty store because the file was damaged; `/readyz` names the "
    "old file.",
)
STORE_QUEUE_WRITES = gauge(
    "watchtower_store_queue_writes", "", "Writes and rows that are not stored yet."
)
STORE_QUEUE_OLDEST = gauge(
    "watchtower_store_queue_oldest_seconds",
    "",
    "Age of the oldest write that is not done; 0 without one.",
)
STORED_BYTES = gauge(
    "watchtower_stored_bytes",
    "",
    "Memory that jobs and nodes use beyond one record per rank, at most 256 MB (268435456).",
)
ROLE = gauge(
    "watchtower_role",
    "role",
    "1 for what this tower is: `owner` of the jobs of its database, on `standby`, or the `single` "
    "tower of a store that no other one can use.",
)
LEASE_EPOCH = gauge(
    "watchtower_lease_epoch",
    "",
    "How often the owner of the jobs had changed when this tower became it. 0: it never did.",
)
LEASE_AGE = gauge(
    "watchtower_lease_age_seconds",
    "",
    "Seconds since the owner renewed its lease, else 0. Above 10, another tower may take over.",
)
STANDBY_TOWERS = gauge(
    "watchtower_standby_towers",
    "",
    "Other towers of the database that are alive. 0: none takes over if this one is lost.",
)
TICK_DURATION = gauge(
    "watchtower_tick_duration_seconds", "", "Duration of the last check of all jobs."
)
TICK_AGE = gauge("watchtower_tick_age_seconds", "", "Seconds since the last check of all jobs.")
REPORTS = counter("watchtower_reports_total", "", "Reports accepted from agents.")
EARLY_REPORTS = counter(
    "watchtower_early_reports_total",
    "",
    "Reports that were answered but not processed: their agent reports more often than the tower "
    "asks.",
)
DUMPS = counter("watchtower_dumps_total", "", "Batches of dumps accepted from agents.")
DIAGNOSES = counter("watchtower_diagnoses_total", "", "Diagnoses made.")
DIAGNOSES_KILLED = counter(
    "watchtower_diagnoses_killed_total",
    "",
    "Diagnoses that were ended because they exceeded their limits.",
)
DIAGNOSIS_DURATION = histogram(
    "watchtower_diagnosis_duration_seconds",
    "",
    "Duration of a diagnosis that was not killed, without the wait for its turn.",
)
REPLY = histogram(
    "watchtower_reply_seconds",
    "path",
    "Time from the request of an agent to the reply. It includes the time in which the agent sends "
    "the message.",
)
INCIDENTS = counter(
    "watchtower_incidents_total",
    "cause",
    "Incidents opened, by the cause that was known at the opening. An incident in shadow mode "
    "counts when it leaves shadow mode.",
)
SHADOW_INCIDENTS = counter(
    "watchtower_shadow_incidents_total",
    "cause",
    "Incidents opened in shadow mode, by the cause that was known at the opening.",
)
LOST_GPU = counter(
    "watchtower_lost_gpu_seconds_total",
    "",
    "Seconds lost in hangs times the number of ranks, over all jobs. Each rank counts as one GPU, "
    "also a rank that uses none.",
)
RANKS_UNWATCHED = gauge(
    "watchtower_ranks_unwatched",
    "reason",
    "Processes that seem to be ranks and are not watched, by reason: second_claim (another process "
    "has the rank), earlier_attempt, many_attempts (the job restarts too often), over_limit, and "
    "the reasons of agents. Drills do not count.",
)
REFUSED_REQUESTS = counter(
    "watchtower_refused_requests_total",
    "reason",
    "Refused requests, by reason: no_token, unknown_token, wrong_scope, wrong_host, cross_site, "
    "bad_message, too_much_waste, busy, too_many_connections, ended_session, stale_form, "
    "too_many_logins.",
)
FAILED_TICKS = counter(
    "watchtower_failed_ticks_total",
    "",
    "Checks of a job that failed; the log contains the traceback.",
)
OUTBOX_WAITING = gauge(
    "watchtower_outbox_waiting",
    "destination",
    "Alerts whose current version the direct destination has not received yet.",
)
OUTBOX_OLDEST = gauge(
    "watchtower_outbox_oldest_seconds",
    "destination",
    "Seconds that the oldest of these alerts has waited; 0 if no alert waits.",
)
OUTBOX_DELIVERIES = counter(
    "watchtower_outbox_deliveries_total",
    "destination",
    "Messages that the destination has accepted.",
)
OUTBOX_FAILURES = counter(
    "watchtower_outbox_failures_total",
    "destination",
    "Failed attempts to send a message. Each one is retried.",
)
BUILD_INFO = gauge("watchtower_build_info", "version", "Always 1.")

TOWER_METRICS: tuple[MetricSpec, ...] = tuple(
    each for each in tuple(globals().values()) if isinstance(each, MetricSpec)
)
"""All metrics of the tower, in the order of the documentation."""
