"""Props: what a drill puts on the stage beside the job, each a process of its own.

Run by path, with `python -I`; the first line on stdout is one word and a JSON object. A prop lives
until it is ended and lets go of everything then; the kernel ends it when the drill dies.
"""
