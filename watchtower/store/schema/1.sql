-- Both SQLite and PostgreSQL execute this: PostgreSQL orders each TEXT by its bytes, as SQLite does.
-- Bodies are compressed. Times are UNIX seconds. A change of the schema is the next file, with the next number. It must
-- suit the towers of the release before, which may run beside it: what it adds has a default.
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    generation BIGINT NOT NULL,
    status TEXT NOT NULL,
    opened_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    closed_at DOUBLE PRECISION,
    verdict TEXT NOT NULL,
    evidence_bytes BIGINT NOT NULL DEFAULT 0,
    acked_at DOUBLE PRECISION,
    acked_by TEXT NOT NULL DEFAULT '',
    ack_note TEXT NOT NULL DEFAULT '',
    verdicts TEXT NOT NULL DEFAULT '[]',
    identity TEXT NOT NULL DEFAULT '{}',
    only_node TEXT NOT NULL DEFAULT '',
    shadow BIGINT NOT NULL DEFAULT 0,
    sharer TEXT NOT NULL DEFAULT '',
    summary_bytes BIGINT NOT NULL DEFAULT 0,
    facts TEXT NOT NULL DEFAULT '{}',
    cause TEXT NOT NULL DEFAULT '',
    domain TEXT NOT NULL DEFAULT '',
    job_user TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS incidents_by_job ON incidents (job, opened_at);
CREATE INDEX IF NOT EXISTS incidents_by_age ON incidents (opened_at, evidence_bytes);
CREATE INDEX IF NOT EXISTS incidents_by_sharer
    ON incidents (sharer, opened_at, closed_at, evidence_bytes);
CREATE INDEX IF NOT EXISTS incidents_by_summary
    ON incidents (sharer, opened_at, closed_at, summary_bytes);
CREATE INDEX IF NOT EXISTS incidents_by_status ON incidents (status, opened_at, id);
CREATE INDEX IF NOT EXISTS incidents_by_cause ON incidents (cause, opened_at, id);
CREATE INDEX IF NOT EXISTS incidents_by_domain ON incidents (domain, opened_at, id);
CREATE INDEX IF NOT EXISTS incidents_by_user ON incidents (job_user, opened_at, id);
-- The nodes and lines of the ranks that a verdict names, by which incidents are found.
CREATE TABLE IF NOT EXISTS suspects (
    incident TEXT NOT NULL,
    node TEXT NOT NULL,
    place TEXT NOT NULL,
    PRIMARY KEY (incident, node, place)
);
CREATE INDEX IF NOT EXISTS suspects_by_node ON suspects (node, incident);
CREATE INDEX IF NOT EXISTS suspects_by_place ON suspects (place, incident);
-- What people answered to "was this right?": the newest answer about each incident.
CREATE TABLE IF NOT EXISTS feedback (
    incident TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    answered_at DOUBLE PRECISION NOT NULL,
    is_right BIGINT NOT NULL,
    true_rank BIGINT,
    true_cause TEXT NOT NULL,
    answered_by TEXT NOT NULL,
    note TEXT NOT NULL,
    verdict_cause TEXT NOT NULL,
    verdict_confidence DOUBLE PRECISION NOT NULL
);
CREATE INDEX IF NOT EXISTS feedback_by_age ON feedback (answered_at);
-- Separate from incidents: an update writes the whole row, and evidence of 16,384 ranks has 29 MB.
CREATE TABLE IF NOT EXISTS evidence (
    incident TEXT PRIMARY KEY,
    body BYTEA NOT NULL
);
-- What pages show of that evidence. It stays when retention deletes the evidence.
CREATE TABLE IF NOT EXISTS summaries (
    incident TEXT PRIMARY KEY,
    body BYTEA NOT NULL
);
CREATE TABLE IF NOT EXISTS dumps (
    id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    node TEXT NOT NULL,
    received_at DOUBLE PRECISION NOT NULL,
    batch BYTEA NOT NULL,
    taken_at DOUBLE PRECISION NOT NULL DEFAULT 0,
    size_bytes BIGINT NOT NULL DEFAULT 0,
    sharer TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS dumps_by_job ON dumps (job, taken_at, size_bytes);
CREATE INDEX IF NOT EXISTS dumps_by_age ON dumps (received_at, size_bytes);
CREATE INDEX IF NOT EXISTS dumps_by_sharer ON dumps (sharer, received_at, size_bytes);
-- What the traced ranks of an incident did before it: one message of each launch.
CREATE TABLE IF NOT EXISTS series (
    incident TEXT NOT NULL,
    node TEXT NOT NULL,
    launch TEXT NOT NULL DEFAULT '',
    sharer TEXT NOT NULL,
    taken_at DOUBLE PRECISION NOT NULL,
    size_bytes BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (incident, node, launch)
);
CREATE INDEX IF NOT EXISTS series_by_sharer ON series (sharer, taken_at, size_bytes);
CREATE TABLE IF NOT EXISTS pauses (
    job TEXT NOT NULL,
    phase TEXT NOT NULL,
    frame_class TEXT NOT NULL,
    length_s DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job, phase, frame_class)
);
CREATE TABLE IF NOT EXISTS attempts (
    job TEXT PRIMARY KEY,
    number BIGINT NOT NULL,
    typical_step_s DOUBLE PRECISION NOT NULL,
    processes TEXT NOT NULL,
    seen_at DOUBLE PRECISION NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS attempts_by_owner ON attempts (owner, seen_at);
CREATE TABLE IF NOT EXISTS silences (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    since DOUBLE PRECISION NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    reason TEXT NOT NULL,
    silenced_by TEXT NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE TABLE IF NOT EXISTS deliveries (
    incident TEXT NOT NULL,
    destination TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (incident, destination)
);
CREATE TABLE IF NOT EXISTS alerts (
    destination TEXT NOT NULL,
    incident TEXT NOT NULL,
    alert TEXT NOT NULL,
    version BIGINT NOT NULL,
    delivered BIGINT NOT NULL,
    receipt TEXT NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (destination, incident)
);
-- Who may write for a partition. A write with an earlier epoch is refused (postgres.py). `until` is
-- of the database's clock. SQLite's file has a lock instead, and no rows here.
CREATE TABLE IF NOT EXISTS leases (
    partition BIGINT PRIMARY KEY,
    owner TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    until DOUBLE PRECISION NOT NULL
);
