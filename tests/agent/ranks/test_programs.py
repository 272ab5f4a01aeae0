"""A child is named by its program and module, without the arguments; a server by its port."""

import pytest

from agent.ranks.launchers import find_port, name_program, name_what_runs


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/rsync --password-file=/x -a src host:dst", "rsync"),
        ("rclone --s3-secret-access-key hunter2", "rclone"),
        ("/opt/venv/bin/python3.11 -m ray.worker --api-key=hunter2", "python3.11 -m ray.worker"),
        ("python -X dev -u -Wignore -mupload.worker hunter2", "python -m upload.worker"),
        ("python3 /home/ada/train.py --api-key=hunter2", "python3"),
        ("python3 -c TOKEN='hunter2' -m secret", "python3"),
        ("python3 train.py -m hunter2", "python3"),
        ("python3 -m --api-key=hunter2", "python3"),
        ("bash -m hunter2", "bash"),
        ("python3", "python3"),
        ("", ""),
    ],
)
def test_a_command_line_is_known_by_its_program_and_module(command, name):
    assert name_program(command.split()) == name


def test_a_title_in_the_first_word_is_no_way_for_arguments():
    assert name_program(["/usr/sbin/uploader: --api-key=hunter2"]) == "uploader:"
    assert name_program(["   "]) == ""


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("vllm serve big/model --tensor-parallel-size 4 --port 8011", "8011"),
        ("python -m sglang.launch_server --port=30000 --tp 4", "30000"),
        ("vllm serve big/model", ""),
        ("vllm serve --port", ""),
        ("vllm serve --port secret", ""),
        ("vllm serve --port 800000", ""),
    ],
)
def test_the_port_of_a_server_is_an_option(command, port):
    assert find_port(command.split()) == port


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 1", "train.py"),
        ("/opt/conda/bin/python3.12 -u /home/a/x/train.py", "train.py"),
        ("python -m llm.train --key x", "llm.train"),
        ("python -mllm.train", "llm.train"),
        ("python -X dev -W error train", "train"),
        ("python -c print(1) secret.py", ""),
        ("python", ""),
        ("./a.out train.py", "a.out"),
        ("/usr/bin/python3 /venv/bin/torchrun --nproc-per-node 8 ./train.py --lr 1", "train.py"),
        ("python -m torch.distributed.run --nproc-per-node=8 -m llm.train", "llm.train"),
        ("torchrun --module llm.train", "llm.train"),
        ("python -u -m deepspeed.launcher.launch --world_info=e30 --rank=0 t.py", "t.py"),
        ("accelerate launch --config_file c.yaml run_clm.py --token hf_x", "run_clm.py"),
        ("mpirun -np 8 python -u train.py", "train.py"),
        ("mpirun -np 8 ./a.out", ""),
        ("torchrun --no-python ./start.sh", ""),
        ("", ""),
    ],
)
def test_people_call_a_program_by_its_script_or_module(command: str, name: str) -> None:
    assert name_what_runs(command.split()) == name


def test_the_argument_of_a_title_is_never_part_of_a_name() -> None:
    assert name_what_runs(["train: --api-key=hunter2"]) == "train:"
    assert name_what_runs(["torchrun", "-m", "--key=hunter2", "--token=a.py"]) == ""
