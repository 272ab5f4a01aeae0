"""`async with timeout(seconds)`, on every Python.

It raises `asyncio.TimeoutError`. Before Python 3.11 that is another exception than `TimeoutError`.
"""

from __future__ import annotations

import asyncio
import sys

if sys.version_info >= (3, 11):
    timeout = asyncio.timeout
else:
    import async_timeout

    timeout = async_timeout.timeout
