"""Who may talk to the tower, and over what: shared by tower, agent and commands. Stdlib only."""
