"""HTTP: parse, call the tower, return. Agents use /ingest, people and bots /api."""
