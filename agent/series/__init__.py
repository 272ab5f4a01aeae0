"""What each rank and GPU did in the last 15 minutes, and what the suspect wrote last."""
