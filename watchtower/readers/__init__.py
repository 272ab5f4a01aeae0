"""Readers of what people have when a job hung: logs, records of a library, stacks, in any folder.

A reader takes the bytes of a file and returns findings, each with its place. It decides nothing.
Agents may use readers, too, so they know no case.
"""
