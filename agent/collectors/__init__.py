"""Collectors: cheap reads at every interval. One file each.

Two kinds: readers of one rank's process (`process`, `traffic`, `endings`), and readers of the node
(`Collector`), which `node.py` names.
"""
