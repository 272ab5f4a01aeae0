"""Which processes of this node are ranks, of which job, and where their pages are."""
