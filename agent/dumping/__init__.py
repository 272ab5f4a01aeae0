"""A dump of this node: when, in which rounds, and of whom. What is dumped is in `dumpers/`."""
