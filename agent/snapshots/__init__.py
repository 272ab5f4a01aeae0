"""A snapshot of this node: its ranks now, without a tower."""
