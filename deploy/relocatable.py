"""Make scripts find the Python beside them, so that their folder can be moved.

Scripts of an environment name their Python with its whole path. Below DESTDIR they have to run
where they are, and later without DESTDIR. A shell runs the second line. Python reads it as a
string.
"""

import sys
from pathlib import Path

HEADER = b"""\
#!/bin/sh
'''exec' "$(dirname -- "$(readlink -f -- "$0")")/python" "$0" "$@"
' '''
"""

for name in sys.argv[1:]:
    script = Path(name)
    first, _, rest = script.read_bytes().partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        script.write_bytes(HEADER + rest)
