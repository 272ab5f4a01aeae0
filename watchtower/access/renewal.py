"""Reads changed token files and certificates while the tower runs, so that no restart is needed.

This is a separate daemon thread: files on a mount that hangs must not block the event loop or the
end of the tower.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time

from watchtower.access.tls import Certificate, TlsError
from watchtower.access.tokens import TokenBook, TokenError

log = logging.getLogger("watchtower.access")

RENEW_EVERY_S = 2.0
"""Seconds between two checks. A token that was removed from its file is invalid after this time.
One check needs a few calls of stat(2)."""


class Renewal:
    """Reads changed files. If a file is not usable, the error is logged once, and the values read
    before stay valid."""

    def __init__(self, book: TokenBook, certificate: Certificate | None = None) -> None:
        self._book = book
        self._certificate = certificate
        self.context: ssl.SSLContext | None = None
        """TLS context of new connections. With a certificate, it is set before `start`."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. New certificates are loaded on `loop`, which makes the connections."""
        threading.Thread(target=self._run, args=(loop,), name="renewal", daemon=True).start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not loop.is_closed():
            time.sleep(RENEW_EVERY_S)
            self._check(loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self._book.renew():
                log.info("the token files changed and were read again")
            if self._certificate is not None and self._certificate.has_changed():
                loop.call_soon_threadsafe(self._use_certificate)
        except (TokenError, TlsError) as error:
            log.error("%s; the tokens and the certificate read before stay valid", error)
        except RuntimeError:
            pass  # the loop was closed in the meantime: the tower stops

    def _use_certificate(self) -> None:
        assert self._certificate is not None
        assert self.context is not None
        try:
            self._certificate.load_into(self.context)
            log.info("the certificate changed; new connections use the new one")
        except TlsError as error:
            log.error("%s; new connections may fail until the certificate is repaired", error)
