"""Certificates made by openssl: an authority, and what it signs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


def openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def sign(
        self, name: str, *, days: int = 2, alternative: str = "IP:127.0.0.1"
    ) -> tuple[str, str]:
        """Make a certificate and its key; returns their paths."""
        cert, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\n")
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", "-new", *new_key, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed = ("-CA", self.file, "-CAkey", self.folder / "ca.key", "-CAcreateserial")
        openssl(
            *("x509", "-req", "-in", request, *signed, "-out", cert),
            *("-days", days, "-extfile", extensions),
        )
        return str(cert), str(key)


def make_authority(folder: Path) -> Authority:
    """Make an authority; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is needed to make certificates")
    authority = Authority(folder)
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        *("req", "-x509", *new_key, "-keyout", folder / "ca.key", "-out", authority.file),
        *("-days", 2, "-subj", "/CN=the tests' authority"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    return authority
