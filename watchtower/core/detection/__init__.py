"""Is it stuck? Conditions, suspicion, patience, incidents."""
