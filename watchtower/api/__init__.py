"""HTTP routes of the tower: agents use /ingest, and people and bots use /api."""
