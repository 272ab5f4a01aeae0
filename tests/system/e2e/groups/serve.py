"""An inference server with the processes, titles and frames of vLLM, on processors.

    python serve.py --port 8011 --requests 40 --culprit 1

The engine gets so many requests. In the last one the worker `--culprit` never comes back from the
model; without a culprit the server is idle after it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site-packages"))

from vllm.v1.engine.core import run_engine_core


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--port", "--requests", "--culprit"):
        parser.add_argument(name, type=int, default=-1)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    requests = context.Queue()
    engine = context.Process(
        target=run_engine_core,
        args=(requests, arguments.culprit if arguments.culprit >= 0 else None),
    )
    engine.start()
    for number in range(arguments.requests):
        is_last = number == arguments.requests - 1
        requests.put({"number": number, "is_last": is_last})
    print(os.getpid(), engine.pid, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
