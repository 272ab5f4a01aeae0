"""Collectors: cheap looks at a rank, every interval. One file each."""
