"""What leaves the node of a configuration: allowed names only, and no secret in a value."""

from __future__ import annotations

import base64
import os
import random
import string
import uuid

import pytest

from agent.procfs import Proc
from agent.ranks.configuration import choose_variables, mask, read_limits, read_node
from watchtower.writing.secrets import HIDDEN

RNG = random.Random(7)
ALNUM = string.ascii_letters + string.digits


def word(count, letters=ALNUM):
    return "".join(RNG.choice(letters) for _ in range(count))


def b64(count):
    return base64.b64encode(RNG.randbytes(count)).decode()


def make_shapes():
    """Return 200 and more values with a secret, and the secret in each."""
    shapes = []
    prefixes = (
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "hf_",
        "sk-",
        "sk-proj-",
        "sk_live_",
        "pk_test_",
        "rk_live_",
        "xoxb-",
        "xoxp-",
        "AKIA",
        "ASIA",
        "AIza",
        "ya29.",
        "npm_",
        "pypi-",
        "dop_v1_",
        "shpat_",
        "SG.",
        "nvapi-",
        "wandb_",
        "lin_api_",
        "dapi",
        "hvs.",
    )
    for prefix in prefixes:
        for count in (16, 36):
            secret = prefix + word(count)
            shapes += [(secret, secret), (f"plugin:{secret}", secret)]
    words = (
        "password",
        "passwd",
        "PASSWORD",
        "secret",
        "token",
        "api_key",
        "apikey",
        "auth_token",
        "Access-Key",
    )
    for name in words:
        for count in (4, 8):
            secret = word(count, string.ascii_lowercase)
            shapes += [
                (f"{name}={secret}", secret),
                (f"{name}: {secret}", secret),
                (f"a=1;{name}='{secret}'", secret),
            ]
    for scheme in ("http", "https", "tcp", "redis", "s3"):
        secret = word(9, string.ascii_lowercase)
        shapes += [(f"{scheme}://user:{secret}@host:80/path", secret)]
        shapes += [(f"{scheme}://{secret}@host", secret)]
    for name in ("Bearer", "Basic", "bearer"):
        secret = word(24)
        shapes.append((f"{name} {secret}", secret))
    for _ in range(10):
        jwt = f"eyJ{word(20)}.eyJ{word(30)}.{word(40)}"
        shapes.append((jwt, jwt[10:]))
        secret = b64(30)
        shapes.append((f"x,{secret}", secret))
        secret = RNG.randbytes(16).hex()
        shapes.append((secret, secret))
        secret = RNG.randbytes(20).hex()
        shapes.append((f"/opt/{secret}/lib", secret))
        secret = word(24, string.ascii_lowercase + string.digits) + "7a"
        shapes.append((secret, secret))
    shapes += [
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
        ("-----BEGIN PRIVATE KEY----- MIIEv\nabc", "MIIEv"),
        ("ssh-rsa AAAAB3NzaC1yc2E host", "AAAAB3NzaC1yc2E"),
        ("--token abcdef", "abcdef"),
    ]
    return shapes


SHAPES = make_shapes()


def test_there_are_200_shapes():
    assert len(SHAPES) >= 200


@pytest.mark.parametrize(("value", "secret"), SHAPES)
def test_no_secret_leaves_the_node(value, secret):
    for name in ("NCCL_NET_PLUGIN", "MASTER_ADDR", "UCX_TLS", "XLA_FLAGS"):
        sent = choose_variables({name: value})
        assert secret not in sent.get(name, ""), sent


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "HOME",
        "PATH",
        "USER",
        "SSH_AUTH_SOCK",
        "PYTHONPATH",
        "TORCH_HUB_TOKEN",
        "NCCL_SECRET",
        "UCX_PASSWORD",
        "FI_AUTH_KEY",
        "nccl_debug",
        "",
    ],
)
def test_other_variables_never_leave_the_node(name):
    assert choose_variables({name: "value"}) == {}


@pytest.mark.parametrize(
    "value",
    [
        "INFO",
        "0",
        "=mlx5_0:1,mlx5_1:1",
        "^docker0,lo",
        "eth0,eth1",
        "10.0.0.1",
        "fe80::1",
        "/opt/nccl-2.27.3/lib/libnccl.so.2",
        "gpu-042.cluster.example.com",
        "llama-70b-worker-0-x7k2q.svc.cluster.local",
        "rc_x,sm,cuda_copy,cuda_ipc,gdr_copy",
        "expandable_segments:True,max_split_size_mb:512",
        "8.0;9.0+PTX",
        "0,1,2,3,4,5,6,7",
        "GPU-8f6d3c1e",
        "^NVLS",
        str(uuid.UUID(int=5)),
        "--xla_gpu_enable_latency_hiding_scheduler=true",
        "nccl_ofi_tuner",
        "/shared/home/Alice_2/run10/Topo-H100.xml",
        "init,net;graph",
        "65536",
        "Ring,Tree",
    ],
)
def test_usual_values_stay_as_they_are(value):
    assert mask(value) == value


def test_values_are_bounded_and_clean():
    sent = choose_variables({"NCCL_DEBUG": "a\x1b[31m\n" * 50, "UCX_TLS": "x" * 10_000})
    assert len(sent["NCCL_DEBUG"]) <= 256
    assert sent["NCCL_DEBUG"].isprintable()
    assert sent["UCX_TLS"] == HIDDEN


def test_the_limits_of_a_process_are_read():
    found = read_limits(Proc(), os.getpid())
    assert {"limit memlock", "limit nofile", "cpus", "numa nodes"} <= found.keys()


def test_the_node_is_read_below_a_root(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("sys/class/net/eth0/mtu", "9000\n")
    write("sys/class/net/eth0/device/x", "")
    write("sys/class/net/veth1/mtu", "1500\n")
    write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n")
    write("sys/class/infiniband/mlx5_0/fw_ver", "28.39.1002\n")
    write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n",
    )
    write("sys/module/nvidia_peermem/x", "")
    found = read_node(str(tmp_path))
    assert found["mtu eth0"] == "9000"
    assert "mtu veth1" not in found
    assert found["rate mlx5_0/1"] == "400 Gb/sec (4X NDR)"
    assert found["firmware mlx5_0"] == "28.39.1002"
    assert found["nvidia driver"] == "570.86.15"
    assert found["nvidia_peermem"] == "loaded"
    assert found["kernel"] == os.uname().release
