"""Dumpers: dear looks at a rank, each under a deadline of its own. One file each."""
