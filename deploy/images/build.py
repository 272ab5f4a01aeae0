"""Builds the images of tower and agent without a container engine: `make images` runs it, as root.

/usr/bin/python3 deploy/images/build.py FOLDER

FOLDER has the .deb of `watchtower`, which is installed into a small Debian. Both images have this
one layer, and differ in user and command. Writes an archive that `docker load`, `podman load` and
`skopeo copy oci-archive:...` read, and the list of everything in it (SPDX).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from email import message_from_bytes, message_from_string
from pathlib import Path
from typing import Any

SUITE = "bookworm"
USER = 65532
"""Of the tower. It is the user of deploy/helm, too."""

OWN_FOLDERS = ("var/lib/watchtower", "var/spool/watchtower")
PACKAGES = ("python3", "ca-certificates", "usr-is-merged")
UNUSED = (
    "usrmerge",
    *(f"lib{each}-perl" for each in ("file-find-rule", "number-compare", "text-glob")),
    *("perl", "perl-modules-5.36", "libperl5.36", "libgdbm-compat4", "libgdbm6"),
)
"""What `usrmerge` has brought: `usr-is-merged` takes its place. 40 MB."""

LEFT_OUT = ("man", "locale", "info", "doc")
OCI = "application/vnd.oci.image"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ASK = "import urllib.request as r; r.urlopen('http://127.0.0.1:{}', timeout=3)"
IMAGES: dict[str, dict[str, Any]] = {
    "watchtower-tower": {
        "User": f"{USER}:{USER}",
        "Entrypoint": ["watchtower"],
        "Cmd": ["serve", "--config", "/etc/watchtower/tower.toml"],
        "ExposedPorts": {"19660/tcp": {}},
        "Volumes": {"/var/lib/watchtower": {}},
        "WorkingDir": "/var/lib/watchtower",
        "Healthcheck": "19660/readyz",
    },
    # Root with the capabilities of the unit: container engines give them to no other user.
    "watchtower-agent": {
        "User": "0:0",
        "Entrypoint": ["watchtower-agent"],
        "Cmd": ["run", "--spool-dir", "/var/spool/watchtower"],
        "ExposedPorts": {"19650/tcp": {}},
        "WorkingDir": "/",
        "Healthcheck": "19650/metrics",
    },
}


def main(folder: Path) -> None:
    """Write the archive and the list."""
    (package,) = folder.glob("watchtower_*.deb")
    _, version, machine = package.stem.split("_")
    with tempfile.TemporaryDirectory(prefix="images-") as text:
        root = Path(text) / "root.tar"
        make_root(package, root)
        listed = write_json(list_packages(root, version))
        (folder / f"watchtower-images_{version}_{machine}.spdx.json").write_bytes(listed)
        archive = folder / f"watchtower-images_{version}_{machine}.tar"
        size = write_archive(root, version, machine, archive)
    print(
        f"{archive}: {size >> 20} MiB to download, {len(json.loads(listed)['packages'])} packages"
    )


def epoch() -> int:
    """Return the time of every file."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def when() -> str:
    """Return the same time as text."""
    return datetime.fromtimestamp(epoch(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_root(package: Path, root: Path) -> None:
    """Write Debian with the package as a tar file, the same bytes for the same packages."""
    name = f"watchtower:x:{USER}:{USER}::/var/lib/watchtower:/usr/sbin/nologin"
    folders = " ".join(f'"$1/{each}"' for each in OWN_FOLDERS)
    hooks = (
        f'chroot "$1" dpkg --purge {" ".join(UNUSED)}',
        f'cp {package} "$1/tmp/own.deb" && chroot "$1" dpkg --install /tmp/own.deb',
        f"echo '{name}' >> \"$1/etc/passwd\"; echo 'watchtower:x:{USER}:' >> \"$1/etc/group\"",
        f'install -d -m 700 -o {USER} -g {USER} {folders}; install -d "$1/etc/watchtower"',
        'rm -rf "$1"/tmp/* "$1"/var/cache/* "$1"/var/log/* "$1"/var/lib/apt',
    )
    options = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in LEFT_OUT]
    options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    options += [f"--customize-hook={hook}" for hook in hooks]
    options += ["--variant=essential", f"--include={','.join(PACKAGES)}"]
    done = subprocess.run(
        ["mmdebstrap", "--quiet", *options, SUITE, root],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch())},
    )
    if done.returncode:
        sys.exit(f"mmdebstrap failed:\n{done.stdout}{done.stderr}")


def list_packages(root: Path, version: str) -> dict[str, Any]:
    """Return the packages of Debian and of Python in a root, as SPDX 2.3."""
    found = sorted(find_packages(root), key=lambda each: each["SPDXID"])
    image = {**package_of("image", "watchtower-images", version), "licenseDeclared": "Apache-2.0"}
    ids = [each["SPDXID"] for each in found]
    digest = hashlib.sha256(write_json(found)).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"watchtower-images-{version}",
        "documentNamespace": f"https://watchtower.example/spdx/{version}-{digest[:32]}",
        "creationInfo": {"created": when(), "creators": ["Tool: deploy/images/build.py"]},
        "packages": [image, *found],
        "relationships": [
            relate("SPDXRef-DOCUMENT", "DESCRIBES", image["SPDXID"]),
            *(relate(image["SPDXID"], "CONTAINS", each) for each in ids),
        ],
    }


def find_packages(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the packages of a tar file of a root."""
    with tarfile.open(root) as archive:
        for member in archive:
            if not member.isfile():
                continue
            if member.name == "./var/lib/dpkg/status":
                (stream,) = filter(None, [archive.extractfile(member)])
                for text in stream.read().decode().strip().split("\n\n"):
                    fields = message_from_string(text)
                    yield package_of("deb", fields["Package"], fields["Version"])
            elif member.name.endswith(".dist-info/METADATA"):
                (stream,) = filter(None, [archive.extractfile(member)])
                fields = message_from_bytes(stream.read())
                made = package_of("pypi", fields["Name"], fields["Version"])
                yield {**made, "licenseDeclared": fields["License-Expression"] or "NOASSERTION"}


def package_of(kind: str, name: str, version: str) -> dict[str, Any]:
    """Return one package of SPDX."""
    place = f"debian/{name}" if kind == "deb" else re.sub(r"[-_.]+", "-", name).lower()
    return {
        "SPDXID": f"SPDXRef-{kind}-{re.sub('[^A-Za-z0-9.-]', '-', name)}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:{kind}/{place}@{version}",
            }
        ]
        * (kind != "image"),
    }


def relate(one: str, how: str, other: str) -> dict[str, str]:
    """Return a relationship of SPDX."""
    return {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}


def write_archive(root: Path, version: str, machine: str, target: Path) -> int:
    """Write both images as one OCI layout, also in the form of `docker save`; return the size of
    the layer in bytes.
    """
    plain = root.read_bytes()
    layer = gzip.compress(plain, compresslevel=6, mtime=0)
    blobs: dict[str, bytes] = {}

    def add(kind: str, body: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(body).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = body
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(body)}

    layer_of = add(f"{OCI}.layer.v1.tar+gzip", layer)
    labels = {
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.source": "https://watchtower.example/src",
    }
    manifests, saved = [], []
    for name, settings in IMAGES.items():
        config = {
            "created": when(),
            "architecture": machine,
            "os": "linux",
            "config": {
                **settings,
                "Env": [PATH],
                "Labels": {**labels, "org.opencontainers.image.title": name},
                "Healthcheck": check_of(settings["Healthcheck"]),
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"],
            },
            "history": [{"created": when(), "created_by": "deploy/images/build.py"}],
        }
        config_of = add(f"{OCI}.config.v1+json", write_json(config))
        body = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json"}
        manifest = add(
            body["mediaType"], write_json({**body, "config": config_of, "layers": [layer_of]})
        )
        names = {"org.opencontainers.image.ref.name": f"{name}:{version}"}
        manifests.append({**manifest, "annotations": names})
        paths = [f"blobs/{each['digest'].replace(':', '/')}" for each in (config_of, layer_of)]
        saved.append({"Config": paths[0], "RepoTags": [f"{name}:{version}"], "Layers": paths[1:]})
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": manifests}
    blobs["index.json"] = write_json(index)
    blobs["oci-layout"] = write_json({"imageLayoutVersion": "1.0.0"})
    blobs["manifest.json"] = write_json(saved)
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, body in sorted(blobs.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(body), epoch(), 0o644
            archive.addfile(entry, io.BytesIO(body))
    return len(layer)


def check_of(address: str) -> dict[str, Any]:
    """Return a health check, which Docker and Podman know; times in nanoseconds."""
    ask = ASK.format(address)
    second = 10**9
    times = {"Interval": 10 * second, "Timeout": 5 * second, "StartPeriod": 15 * second}
    return {"Test": ["CMD", "/opt/watchtower/bin/python", "-c", ask], **times, "Retries": 3}


def write_json(value: Any) -> bytes:
    """Return the same bytes for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
