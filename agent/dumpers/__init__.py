"""Dumpers: expensive reads of a rank, each under a deadline of its own. One file each."""
