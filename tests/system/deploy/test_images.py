"""The images of tower and agent: built without a container engine, and started as one would.

`make test-packages` runs it. A chroot with namespaces, a read-only root, and the user and
capabilities that deploy/helm gives takes the place of the engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.images.build import USER
from tests.deploy.test_kubernetes import AGENT, OBJECTS, TOWER, container_of
from tests.system.deploy.clean_root import DEADLINE_S, run
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
TOWER_NAME, AGENT_NAME = "watchtower-tower", "watchtower-agent"
TOKENS = "/run/watchtower/tokens"
PROBES = ("readinessProbe", "livenessProbe")
QUIET: dict[str, Any] = {"capture_output": True, "timeout": 60}
STARTED_S = 180.0
STOPPED_S = TOWER["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] * 3
"""Three times what Kubernetes waits: this machine may be busy."""
MAX_LAYER_BYTES = 60 << 20
"""To download. 54 MiB when this was written."""

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(DEADLINE_S),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a root"),
    pytest.mark.skipif(not shutil.which("mmdebstrap"), reason="apt install mmdebstrap"),
]


class Images:
    """The archive, unpacked."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self.layout, self.root = folder / "layout", folder / "root"
        self.layout.mkdir()
        self.root.mkdir()
        run("tar", "-xf", archive, "-C", self.layout)
        index = self.read("index.json")["manifests"]
        key = "org.opencontainers.image.ref.name"
        self.manifests = {each["annotations"][key].split(":")[0]: each for each in index}
        layer = self.blob(self.manifest(TOWER_NAME)["layers"][0])
        run("tar", "-xzf", layer, "-C", self.root)

    def read(self, name: str) -> Any:
        return json.loads((self.layout / name).read_text("utf-8"))

    def blob(self, descriptor: dict[str, Any]) -> Path:
        return self.layout / "blobs" / descriptor["digest"].replace(":", "/")

    def manifest(self, name: str) -> dict[str, Any]:
        return json.loads(self.blob(self.manifests[name]).read_bytes())

    def config(self, name: str) -> dict[str, Any]:
        return json.loads(self.blob(self.manifest(name)["config"]).read_bytes())

    def words(self, name: str, *command: str) -> list[str]:
        """How a program is run in an image, without a manifest."""
        own = self.config(name)["config"]
        return enter(self.root, own["User"].split(":"), own["Env"], command)


def enter(
    root: Path,
    user: Sequence[object],
    environment: Sequence[str],
    command: Sequence[str],
    mounts: Sequence[str] = (),
    rights: Sequence[str] = (),
    host_pid: bool = False,
) -> list[str]:
    """Words that run a program as a container engine does: read-only root, few devices, a user, a
    bounding set of capabilities, and namespaces.
    """
    steps = [
        f"mount --bind {root} {root}; mount -o remount,bind,ro {root}",
        f"mount -t tmpfs tmpfs {root}/tmp; mount -t tmpfs tmpfs {root}/dev; mkdir {root}/dev/shm; "
        f"mount -t tmpfs shm {root}/dev/shm",
        *(
            f"touch {root}/dev/{each}; mount --bind /dev/{each} {root}/dev/{each}"
            for each in ("null", "zero", "random", "urandom")
        ),
        f"mount --rbind /proc {root}/proc" if host_pid else f"mount -t proc proc {root}/proc",
        *mounts,
    ]
    limits = f"--bounding-set={','.join(['-all', *rights])} --inh-caps=-all --no-new-privs"
    ids = f"--reuid {user[0]} --regid {user[1]} --groups {user[1]}"
    script = f'{"; ".join(steps)}; exec chroot {root} setpriv {ids} {limits} env -i "$@"'
    spaces = ["unshare", "--mount", *(["--pid", "--fork", "--kill-child"] * (not host_pid))]
    return [*spaces, "sh", "-ec", script, "sh", *environment, *command]


class Pod:
    """The pod of a workload of deploy/kubernetes, as far as one machine can be its node.

    Volumes, user, rights, environment, command and probes are those of the manifest.
    """

    def __init__(self, workload: dict[str, Any], images: Images, node: Path, network: int) -> None:
        self.spec = workload["spec"]["template"]["spec"]
        self.container = container_of(workload)
        self.name = self.container["image"].partition(":")[0]
        self.images, self.node = images, node / self.name
        self.context = {**self.spec.get("securityContext", {}), **self.container["securityContext"]}
        self.into = ["nsenter", f"--net=/proc/{network}/ns/net"]
        claims = workload["spec"].get("volumeClaimTemplates", [])
        self.volumes = {each["name"]: each for each in self.spec["volumes"]}
        self.volumes |= {each["metadata"]["name"]: {"emptyDir": {}} for each in claims}
        places = {"spec.nodeName": "gpu-node-1", "status.podIP": "127.0.0.1"}
        self.variables = {
            each["name"]: each.get("value") or places[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in self.container.get("env", [])
        }
        assert self.name in images.manifests

    def fill(self, volume: dict[str, Any], place: Path, secret: dict[str, str]) -> None:
        """Write what Kubernetes would put into a volume."""
        group = self.context.get("fsGroup", 0)
        place.mkdir(parents=True, exist_ok=True)
        os.chown(place, 0, group)
        place.chmod(0o2775)
        if "configMap" in volume:
            (data,) = (each["data"] for each in OBJECTS if each["kind"] == "ConfigMap")
            files, mode = data, 0o644
        else:
            asked = volume.get("secret", {})
            items = asked.get("items", [{"key": each, "path": each} for each in secret])
            files = {each["path"]: secret[each["key"]] for each in items if asked}
            mode = asked.get("defaultMode", 0o644)
        for name, text in files.items():
            (place / name).write_text(text)
            os.chown(place / name, 0, group)
            (place / name).chmod(mode)

    def words(self, secret: dict[str, str], *command: str) -> list[str]:
        """How a program is run in this pod; by default that of the container."""
        hosts = self.node / "hosts"
        self.node.mkdir(parents=True, exist_ok=True)
        hosts.write_text("127.0.0.1 localhost watchtower.watchtower.svc\n")
        root, mounts = self.images.root, [f"mount --bind {hosts} {self.images.root}/etc/hosts"]
        (root / "etc/hosts").touch()  # as an engine does, and below folders
        for each in self.container["volumeMounts"]:
            place, target = self.node / each["name"], f"{root}{each['mountPath']}"
            if not place.exists():
                self.fill(self.volumes[each["name"]], place, secret)
            Path(target).mkdir(parents=True, exist_ok=True)
            mounts += [f"mount --bind {place} {target}"]
            mounts += [f"mount -o remount,bind,ro {target}"] * each.get("readOnly", False)
        environment = {**self.variables}
        own = [*self.images.config(self.name)["config"]["Env"]]
        own += [f"{name}={value}" for name, value in environment.items()]
        words = command or [
            re.sub(r"\$\((\w+)\)", lambda found: self.variables[found[1]], word)
            for word in self.container["command"]
        ]
        added = self.context["capabilities"].get("add", [])
        return [
            *self.into,
            *enter(
                root,
                [self.context["runAsUser"], self.context.get("runAsGroup", 0)],
                own,
                words,
                mounts,
                [f"+{each.lower()}" for each in added],
                self.spec.get("hostPID", False),
            ),
        ]

    @contextlib.contextmanager
    def running(self, secret: dict[str, str]) -> Iterator[None]:
        """Run the container until the end, which it has to reach by SIGTERM in time."""
        log = self.node.with_suffix(".log")
        words = self.words(secret)
        with log.open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
        self.process = process
        try:
            yield
        finally:
            print(log.read_text())  # shown if a test fails
            # The group, as an engine ends what is process 1: `unshare` itself ignores it.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(STOPPED_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise

    def is_ready(self) -> bool:
        """Ask what the kubelet would ask, and run the health check of the image."""
        assert self.process.poll() is None
        ports = {each["name"]: each["containerPort"] for each in self.container["ports"]}
        probes = [self.container[name] for name in PROBES if name in self.container]
        for probe in probes:
            get = probe["httpGet"]
            url = f"http://127.0.0.1:{ports[get['port']]}{get['path']}"
            script = f"import urllib.request as r; r.urlopen({url!r}, timeout=5)"
            if subprocess.run(
                [*self.into, sys.executable, "-c", script], check=False, **QUIET
            ).returncode:
                return False
        kind, *check = self.images.config(self.name)["config"]["Healthcheck"]["Test"]
        assert (kind, len(probes) > 0) == ("CMD", True)
        return subprocess.run(self.words({}, *check), check=False, **QUIET).returncode == 0


@pytest.fixture
def network() -> Iterator[int]:
    """A process with a network of its own, in which ports are free."""
    script = "ip link set lo up; echo; exec sleep 900"
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE)
    assert holder.stdout
    holder.stdout.readline()
    yield holder.pid
    holder.kill()
    holder.wait()
    holder.stdout.close()


@pytest.fixture(scope="module")
def images(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    folder = tmp_path_factory.mktemp("images")
    folder.chmod(0o755)
    run(
        "make",
        "-C",
        ROOT,
        "-o",
        ROOT / ".venv/.ready",
        "images",
        f"DIST={packages}",
        "-o",
        "packages",
    )
    yield Images(next(packages.glob("watchtower-images_*.tar")), folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_the_archive_is_a_whole_oci_layout(images: Images) -> None:
    assert images.read("oci-layout") == {"imageLayoutVersion": "1.0.0"}
    assert images.manifests.keys() == {TOWER_NAME, AGENT_NAME}
    for name, descriptor in images.manifests.items():
        manifest = images.manifest(name)
        for each in (descriptor, manifest["config"], *manifest["layers"]):
            body = images.blob(each).read_bytes()
            assert each["size"] == len(body)
            assert each["digest"] == f"sha256:{hashlib.sha256(body).hexdigest()}"
        (layer,) = manifest["layers"]
        assert layer["size"] <= MAX_LAYER_BYTES
        plain = subprocess.check_output(["gzip", "-dc", images.blob(layer)])
        wanted = [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
        assert images.config(name)["rootfs"]["diff_ids"] == wanted
    saved = {each["RepoTags"][0].split(":")[0]: each for each in images.read("manifest.json")}
    for name, each in saved.items():
        assert images.layout / each["Config"] == images.blob(images.manifest(name)["config"])


@pytest.mark.skipif(not shutil.which("skopeo"), reason="apt install skopeo")
def test_a_tool_for_images_reads_it(images: Images) -> None:
    name = f"oci-archive:{images.archive}:{TOWER_NAME}:0.1.0"
    found = json.loads(run("skopeo", "inspect", "--config", name))
    assert found["config"]["User"] == f"{USER}:{USER}"


def test_the_list_of_its_packages_is_what_is_installed(images: Images) -> None:
    listed = json.loads(images.archive.with_suffix(".spdx.json").read_text("utf-8"))
    ask = ("dpkg-query", "--show", "--showformat=${Package} ${Version}\n")
    installed = run(*images.words(TOWER_NAME, *ask))
    places = {
        each["referenceLocator"] for pack in listed["packages"] for each in pack["externalRefs"]
    }
    for line in installed.splitlines():
        assert "pkg:deb/debian/{}@{}".format(*line.split()) in places
    script = (
        "import importlib.metadata as m\nfor d in m.distributions(): print(f'{d.name}@{d.version}')"
    )
    found = run(*images.words(TOWER_NAME, "/opt/watchtower/bin/python", "-c", script)).split()
    assert len(found) > 20
    names = {place.rpartition("/")[2].replace("-", "").replace("_", "") for place in places}
    for each in found:
        assert each.lower().replace("-", "").replace("_", "") in names
    assert listed["spdxVersion"] == "SPDX-2.3"


def test_the_pods_of_the_manifest_name_the_rank_of_a_drill(
    images: Images, tmp_path: Path, network: int
) -> None:
    secret = {scope: secrets.token_urlsafe(32) for scope in ("agent", "reader", "operator")}
    tower, agent = (Pod(each, images, tmp_path, network) for each in (TOWER, AGENT))
    fault = ("watchtower", "drill", "dataloader_sleep", "--backend", "stdlib", "--json")

    def ask(*words: str) -> Any:
        address = ("--tower", agent.variables["WATCHTOWER_URL"], "--insecure")
        token = f"--token-file={TOKENS}/reader"
        return json.loads(run(*tower.words({}, "watchtower", *words, "--json", *address, token)))

    def find_verdict() -> dict[str, Any]:
        """Of the job of our drill: others may run on this machine."""
        assert not drill.poll()
        listed = ask("jobs", "--drills")["items"]
        (job,) = [each["job"] for each in listed if each["owner"] == f"uid:{USER}"] or [""]
        return ask("why", job) if job else {}

    with tower.running(secret), agent.running(secret):
        for pod in (tower, agent):
            wait_until(pod.is_ready, f"{pod.name} is ready", STARTED_S)
        drill = subprocess.Popen(
            images.words(TOWER_NAME, *fault), stdout=subprocess.PIPE, text=True
        )
        try:
            found = wait_until(
                lambda: (seen := find_verdict()).get("suspects") and seen, "a verdict", STARTED_S
            )
            result = json.loads(drill.communicate(timeout=STARTED_S)[0].splitlines()[-1])
        finally:
            drill.kill()
            drill.wait()
    assert (result["right_rank"], result["right_cause"]) == (True, True)
    assert [each["rank"] for each in found["suspects"]] == result["injected"]["ranks"]
    assert found["cause"] == result["injected"]["cause"] == "dataloader_stall"
    assert (tmp_path / TOWER_NAME / "data/watchtower.db").stat().st_uid == USER
