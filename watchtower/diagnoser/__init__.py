"""The diagnosing process: `process` starts, calls and ends it, and `__main__` runs in it.

A diagnosis reads text from processes of all users. In a separate process it cannot block the event
loop or the reports of other jobs, and the tower can end it if it takes too long.
"""
