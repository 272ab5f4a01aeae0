"""A child is named by its program and module, without the arguments."""

import pytest

from agent.ranks.launchers import name_program


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
