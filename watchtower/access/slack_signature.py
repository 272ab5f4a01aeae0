"""Checks that a request comes from Slack: signature v0, a fresh time, and no earlier use.

https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict

MAX_AGE_S = 300
"""Seconds between the time of a request and the tower's clock, as Slack recommends."""

MAX_SEEN = 10_000
"""Signatures of the last minutes that are remembered. Only requests with a valid signature are
remembered, and people type fewer commands."""

_STAMP = re.compile(r"\d{1,12}", re.ASCII)
_SIGNATURE = re.compile(r"v0=[0-9a-f]{64}", re.ASCII)


class SlackSignatures:
    """Checks the requests of one Slack app."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._seen: OrderedDict[str, float] = OrderedDict()
        """Time of each accepted request, by its signature, oldest first."""

    def find_fault(self, stamp: str, signature: str, wall: float) -> str:
        """Return why the headers of a request are refused; empty if they may be valid.

        This needs no body, so that a request without a fresh time is refused before it is read.
        """
        if not _STAMP.fullmatch(stamp) or not _SIGNATURE.fullmatch(signature):
            return "the signature of Slack is missing"
        if abs(wall - int(stamp)) > MAX_AGE_S:
            return f"the time of the request differs by more than {MAX_AGE_S} s"
        return ""

    def accept(self, stamp: str, signature: str, body: bytes, wall: float) -> str:
        """Return why a request is refused; empty if it is valid and was not accepted before."""
        if fault := self.find_fault(stamp, signature, wall):
            return fault
        signed = b":".join((b"v0", stamp.encode(), body))
        expected = f"v0={hmac.new(self._secret, signed, hashlib.sha256).hexdigest()}"
        if not hmac.compare_digest(expected, signature):
            return "the signature of Slack is wrong: check the signing secret"
        self._forget(wall)
        if signature in self._seen:
            return "this request was sent before"
        if len(self._seen) >= MAX_SEEN:
            return "too many requests"
        self._seen[signature] = wall
        return ""

    def _forget(self, wall: float) -> None:
        """Drop signatures whose requests are refused by their time."""
        while self._seen:
            signature, at = next(iter(self._seen.items()))
            # A clock that jumped back must not keep signatures for ever.
            if abs(wall - at) <= 2 * MAX_AGE_S:
                return
            del self._seen[signature]
