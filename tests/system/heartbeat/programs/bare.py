"""Does what it is told, a line at a time; imports nothing of the client by itself."""

import sys

if __name__ == "__main__":  # a spawned child imports this too
    names = {}
    print("ready", flush=True)
    for line in sys.stdin:
        exec(line, names)
        print("done", flush=True)
