-- The towers that use this database, on standby or not: where they are, and when they were last there (UNIX seconds of
-- the database's clock). A lease names its owner by `name`.
CREATE TABLE IF NOT EXISTS towers (
    name TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    seen_at DOUBLE PRECISION NOT NULL
);
-- Secrets that all towers share, such as the key of web sessions. SQLite has a file for each instead.
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
