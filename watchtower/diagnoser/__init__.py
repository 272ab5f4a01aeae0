"""The process that diagnoses: `process` starts, asks and ends it, `__main__` is what runs in it.

A diagnosis reads text from processes of all users. In a process of its own it holds up neither the
event loop nor other jobs' reports, and one that takes too long is ended.
"""
