"""Reads changed token files and certificates while the tower runs: no restart is needed.

A thread of its own: files on a mount that hangs must not hold the event loop, nor the stop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time

from watchtower.access.scopes import TokenBook
from watchtower.access.tls import Certificate, TlsError
from watchtower.access.tokens import TokenError

log = logging.getLogger("watchtower.access")

RENEW_EVERY_S = 2.0
"""A leaked token is void this long after its file was changed; a check is a few stat(2)."""


class Renewal:
    """Reads what has changed. What cannot be used is told once, and changes nothing."""

    def __init__(self, book: TokenBook, certificate: Certificate | None = None) -> None:
        self._book = book
        self._certificate = certificate
        self.context: ssl.SSLContext | None = None
        """What new connections are made with; set before `start` where there is a certificate."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin. New certificates are put in place on `loop`, which makes the connections."""
        threading.Thread(target=self._run, args=(loop,), name="renewal", daemon=True).start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not loop.is_closed():
            time.sleep(RENEW_EVERY_S)
            self._check(loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self._book.renew():
                log.info("the tokens were read again, their files have changed")
            if self._certificate is not None and self._certificate.has_changed():
                loop.call_soon_threadsafe(self._use_certificate)
        except (TokenError, TlsError) as error:
            log.error("%s; what was read before stays valid", error)
        except RuntimeError:
            pass  # the loop was closed meanwhile: the tower stops

    def _use_certificate(self) -> None:
        assert self._certificate is not None
        assert self.context is not None
        try:
            self._certificate.load_into(self.context)
            log.info("new connections get the new certificate")
        except TlsError as error:
            log.error("%s; new connections may fail until it is mended", error)
