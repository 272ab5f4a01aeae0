-- Version 1. Portable SQL: no SQLite type tricks, so that a second database can take it.
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    generation INTEGER NOT NULL,
    status TEXT NOT NULL,
    opened_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    closed_at DOUBLE PRECISION,
    verdict TEXT NOT NULL,
    evidence TEXT
);
CREATE INDEX IF NOT EXISTS incidents_by_job ON incidents (job, opened_at);
CREATE TABLE IF NOT EXISTS dumps (
    id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    node TEXT NOT NULL,
    received_at DOUBLE PRECISION NOT NULL,
    batch TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS dumps_by_age ON dumps (received_at);
CREATE TABLE IF NOT EXISTS pauses (
    job TEXT NOT NULL,
    phase TEXT NOT NULL,
    frame_class TEXT NOT NULL,
    length_s DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job, phase, frame_class)
);
CREATE TABLE IF NOT EXISTS generations (
    job TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    typical_step_s DOUBLE PRECISION NOT NULL,
    processes TEXT NOT NULL
);
