"""Data that outlives the tower: incidents with their cases, dumps, learned pauses, attempts."""
