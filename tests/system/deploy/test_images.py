"""The images of tower and agent: built without a container engine, and started as one would.

`make test-packages` runs it. A chroot with namespaces, a read-only root, and the user and
capabilities that deploy/helm gives takes the place of the engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.images.build import USER
from tests.deploy.test_kubernetes import AGENT, TOWER, container_of
from tests.system.deploy.clean_root import DEADLINE_S, run
from tests.waiting import wait_until
from watchtower.drills.launching import free_port

ROOT = Path(__file__).parents[3]
TOWER_NAME, AGENT_NAME = "watchtower-tower", "watchtower-agent"
DATA = "var/lib/watchtower"
STARTED_S = 120.0
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
        for name in ("watchtower", "agent"):
            (folder / name).mkdir()
        os.chown(folder / "watchtower", USER, USER)

    def read(self, name: str) -> Any:
        return json.loads((self.layout / name).read_text("utf-8"))

    def blob(self, descriptor: dict[str, Any]) -> Path:
        return self.layout / "blobs" / descriptor["digest"].replace(":", "/")

    def manifest(self, name: str) -> dict[str, Any]:
        return json.loads(self.blob(self.manifests[name]).read_bytes())

    def config(self, name: str) -> dict[str, Any]:
        return json.loads(self.blob(self.manifest(name)["config"]).read_bytes())

    def words(self, name: str, *command: str) -> list[str]:
        """How a program is run in an image: read-only root, its user, its capabilities."""
        pod = AGENT if name == AGENT_NAME else TOWER
        context = container_of(pod)["securityContext"]
        rights = [f"+{each.lower()}" for each in context["capabilities"].get("add", [])]
        user, group = self.config(name)["config"]["User"].split(":")
        own_pids = pod["spec"]["template"]["spec"].get("hostPID", False) is False
        root, data = self.root, self.folder / ("agent" if name == AGENT_NAME else "watchtower")
        place = "var/spool/watchtower" if name == AGENT_NAME else DATA
        mounts = (
            f"mount --bind {root} {root}; mount -o remount,bind,ro {root}; "
            f"mount -t tmpfs tmpfs {root}/tmp; mount --bind {data} {root}/{place}; "
            f"mount --rbind /dev {root}/dev; "
            + (
                f"mount -t proc p {root}/proc; "
                if own_pids
                else f"mount --rbind /proc {root}/proc; "
            )
        )
        limits = f"--bounding-set={','.join(['-all', *rights])} --inh-caps=-all --no-new-privs"
        enter = f"exec chroot {root} setpriv --reuid {user} --regid {group} --clear-groups {limits}"
        environment = " ".join(self.config(name)["config"]["Env"])
        spaces = ["unshare", "--mount", *(["--pid", "--fork", "--kill-child"] * own_pids)]
        return [*spaces, "sh", "-ec", f'{mounts}{enter} env -i {environment} "$@"', "sh", *command]

    def run(self, name: str, *command: str) -> str:
        return run(*self.words(name, *command))

    @contextlib.contextmanager
    def started(self, name: str, *command: str) -> Iterator[None]:
        """Run the program of an image, as its container would, until the end."""
        own = self.config(name)["config"]
        words = self.words(name, *own["Entrypoint"], *(command or own["Cmd"]))
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            print(log.read_text())  # shown if a test fails
            # The group, as an engine ends what is process 1: `unshare` itself ignores it.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise

    def is_healthy(self, name: str, port: int) -> bool:
        """Run the health check of an image, at another port."""
        kind, *words = self.config(name)["config"]["Healthcheck"]["Test"]
        assert kind == "CMD"
        text = words[-1].replace("19660", str(port)).replace("19650", str(port))
        command = self.words(name, *words[:-1], text)
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        return done.returncode == 0


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
    installed = images.run(
        TOWER_NAME, "dpkg-query", "--show", "--showformat=${Package} ${Version}\n"
    )
    places = {
        each["referenceLocator"] for pack in listed["packages"] for each in pack["externalRefs"]
    }
    for line in installed.splitlines():
        assert "pkg:deb/debian/{}@{}".format(*line.split()) in places
    script = (
        "import importlib.metadata as m\nfor d in m.distributions(): print(f'{d.name}@{d.version}')"
    )
    found = images.run(TOWER_NAME, "/opt/watchtower/bin/python", "-c", script).split()
    assert len(found) > 20
    names = {place.rpartition("/")[2].replace("-", "").replace("_", "") for place in places}
    for each in found:
        assert each.lower().replace("-", "").replace("_", "") in names
    assert listed["spdxVersion"] == "SPDX-2.3"


def test_tower_and_agent_of_the_images_start_and_find_each_other(images: Images) -> None:
    """With the commands of the images and users, rights and paths of deploy/helm."""
    context = TOWER["spec"]["template"]["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (USER, USER)
    tower, agent = free_port(), free_port()
    settings = images.root / "etc/watchtower/tower.toml"
    settings.write_text(f'[tower]\nport = {tower}\ndata_dir = "/{DATA}"\n')
    url = f"http://127.0.0.1:{tower}"
    options = ("--tower", url, "--port", str(agent), "--spool-dir", "/var/spool/watchtower")
    rank = [shutil.which("sleep"), "600"]
    with images.started(TOWER_NAME), images.started(AGENT_NAME, "run", *options):
        wait_until(lambda: images.is_healthy(TOWER_NAME, tower), "the tower", STARTED_S)
        wait_until(lambda: images.is_healthy(AGENT_NAME, agent), "the agent", STARTED_S)
        job = {"WATCHTOWER_JOB": "in-no-image", "RANK": "0", "WORLD_SIZE": "1"}
        process = subprocess.Popen(rank, env=os.environ | job)
        try:
            ask = ("watchtower", "jobs", "--tower", url)
            wait_until(lambda: "in-no-image" in images.run(TOWER_NAME, *ask), "the job", STARTED_S)
        finally:
            process.kill()
            process.wait()
    assert (images.folder / "watchtower/watchtower.db").stat().st_uid == USER
    settings.unlink()


def test_a_drill_in_the_image_is_named(images: Images) -> None:
    fast = images.root / "etc/watchtower/fast.toml"
    shutil.copyfile(ROOT / "tests/system/e2e/fast.toml", fast)
    fault = ("watchtower", "drill", "dataloader_sleep", "--backend", "stdlib", "--ranks", "4")
    text = images.run(TOWER_NAME, *fault, "--config", "/etc/watchtower/fast.toml")
    assert "hung: dataloader_stall, rank " in text, text
