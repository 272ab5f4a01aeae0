"""TLS: a client's trusted authorities, the tower's certificate, and readable error messages."""

from __future__ import annotations

import ipaddress
import ssl

from watchtower.access.tokens import FileWatch

CA_VARIABLE = "WATCHTOWER_CA_FILE"

_EXPIRED, _NOT_YET = 10, 9
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_WRONG_NAME = (62, 64)
"""X509_V_ERR_* of OpenSSL's x509_vfy.h: hostname mismatch, address mismatch."""

_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


class TlsError(Exception):
    """A certificate, key or CA file is not usable. The message describes what to do."""


def trust(ca_file: str = "") -> ssl.SSLContext:
    """Return a client's TLS context, which trusts the system's authorities or only `ca_file`.

    It checks host names and requires TLS 1.2 or newer. Raises TlsError.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise TlsError(f"the CA file {ca_file} has no certificate in PEM format") from None
    except OSError as error:
        raise TlsError(f"cannot read the CA file {ca_file}: {error.strerror}") from None


def explain(error: BaseException) -> str:
    """Return a description of a TLS error; "" for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    if not isinstance(error, ssl.SSLError):
        return ""
    if error.reason in _NOT_TLS:
        return "the server does not use TLS: use http:// instead of https:// in the address"
    return f"TLS failed: {error.reason or error.strerror or type(error).__name__}"


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "the tower's certificate has expired: install a new one on the tower"
    if code == _NOT_YET:
        return "the tower's certificate is not valid yet: compare the clocks of both machines"
    if code in _UNKNOWN_AUTHORITY:
        return (
            "the tower's certificate is signed by an authority that is not trusted here: set "
            f"--ca-file or {CA_VARIABLE} to the authority's certificate"
        )
    if code in _WRONG_NAME:
        return f"the tower's certificate is for another name: {error.verify_message}"
    return f"the tower's certificate is not valid: {error.verify_message}"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is on the loopback interface of this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Certificate:
    """The tower's certificate and key. They are loaded again if their files change."""

    def __init__(self, cert: str, key: str) -> None:
        """Check the files. Raises TlsError."""
        self._cert, self._key = cert, key
        self._watch = FileWatch((cert, key))
        self.check()

    def check(self) -> None:
        """Check the files in a context that no connection uses. Raises TlsError."""
        self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the files into a server's context, for new connections. Raises TlsError."""
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except ssl.SSLError as error:
            raise TlsError(
                f"`tls_cert` {self._cert} and `tls_key` {self._key} are not a matching "
                f"certificate and key in PEM format: {error.reason or error}"
            ) from None
        except OSError as error:
            raise TlsError(
                f"cannot read `tls_cert` {self._cert} or `tls_key` {self._key}: {error.strerror}"
            ) from None

    def has_changed(self) -> bool:
        """Return whether the files have changed. Raises TlsError if they are not usable."""
        if not self._watch.has_changed():
            return False
        self.check()
        return True


def _no_password() -> str:
    raise TlsError("`tls_key` is encrypted: use a key without a password that the tower can read")
