"""TLS: whom a client trusts, the tower's certificate, and errors that a person understands."""

from __future__ import annotations

import ipaddress
import ssl

from watchtower.access.files import FileWatch

CA_VARIABLE = "WATCHTOWER_CA_FILE"

_EXPIRED, _NOT_YET = 10, 9
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_WRONG_NAME = (62, 64)
"""X509_V_ERR_* of OpenSSL's x509_vfy.h: hostname mismatch, address mismatch."""

_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


class TlsError(Exception):
    """A certificate, key or list of authorities cannot be used; the message says what to do."""


def trust(ca_file: str = "") -> ssl.SSLContext:
    """Make a client's context: the system's authorities, or those of `ca_file` alone.

    Names are checked, and TLS is 1.2 or newer. Raises TlsError.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise TlsError(f"{ca_file} holds no certificate in PEM form") from None
    except OSError as error:
        raise TlsError(f"the CA file {ca_file} cannot be read: {error.strerror}") from None


def explain(error: BaseException) -> str:
    """Say what went wrong with TLS; empty when it was something else."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    if not isinstance(error, ssl.SSLError):
        return ""
    if error.reason in _NOT_TLS:
        return "it does not speak TLS: is its address http:// instead of https://?"
    return f"TLS failed: {error.reason or error.strerror or type(error).__name__}"


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired: put a new one in place on the tower"
    if code == _NOT_YET:
        return "its certificate is not valid yet: compare the clocks of both machines"
    if code in _UNKNOWN_AUTHORITY:
        return (
            "its certificate is signed by an authority unknown here: name that authority's "
            f"certificate with --ca-file or {CA_VARIABLE}"
        )
    if code in _WRONG_NAME:
        return f"its certificate is for another name: {error.verify_message}"
    return f"its certificate is refused: {error.verify_message}"


def is_loopback(host: str) -> bool:
    """Whether a name or address cannot leave this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Certificate:
    """The tower's certificate and key, loaded again when their files change."""

    def __init__(self, cert: str, key: str) -> None:
        """Check the files. Raises TlsError."""
        self._cert, self._key = cert, key
        self._watch = FileWatch((cert, key))
        self.check()

    def check(self) -> None:
        """Try the files, away from the connections that use them. Raises TlsError."""
        self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use the files for new connections of a server's context. Raises TlsError."""
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except ssl.SSLError as error:
            raise TlsError(
                f"`tls_cert` {self._cert} and `tls_key` {self._key} are no pair of certificate "
                f"and key in PEM form: {error.reason or error}"
            ) from None
        except OSError as error:
            raise TlsError(
                f"`tls_cert` {self._cert} or `tls_key` {self._key} cannot be read: {error.strerror}"
            ) from None

    def has_changed(self) -> bool:
        """Whether the files have changed and are good. Raises TlsError when they are not."""
        if not self._watch.has_changed():
            return False
        self.check()
        return True


def _no_password() -> str:
    raise TlsError("`tls_key` is encrypted: give a key without a password, readable by the tower")
