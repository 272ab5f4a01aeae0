"""The start of `watchtower.pyz`: unpacks the programs into a private folder, and removes it later.

Libraries with native code cannot be loaded from a zip file, and py-spy must be a file that can be
executed. This file runs on any Python 3, so that an old one gets a message.
"""

import os
import platform
import shutil
import signal
import sys
import tempfile
import zipfile

AGENT, TOWER = ("snapshot",), ("diagnose", "replay")
USAGE = """usage: python3 watchtower.pyz COMMAND

  snapshot [-o FILE]   write what the ranks of this node do now to a file
  diagnose FILE...     name the rank that hung a job, from the snapshots of its nodes, or from a
                       folder of logs, stacks and records
  replay FILE          diagnose an exported incident again

`python3 watchtower.pyz COMMAND --help` describes a command. This file needs no installation.
"""
OLDEST = (3, 10)
FOLDERS = ("TMPDIR", "XDG_RUNTIME_DIR"), ("/tmp", "/dev/shm", "/var/tmp", ".")


def main(words):
    """Run one command; returns its exit code."""
    if not words or words[0] not in AGENT + TOWER:
        asked = bool(words) and words[0] in ("-h", "--help", "help")
        (sys.stdout if asked else sys.stderr).write(USAGE)
        return 0 if asked else 2
    folder = None
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        with zipfile.ZipFile(os.path.dirname(os.path.abspath(__file__))) as archive:
            trouble = _find_trouble(archive)
            if trouble:
                sys.stderr.write("watchtower.pyz: " + trouble + "\n")
                return 2
            folder = _make_folder()
            if not folder:
                sys.stderr.write(
                    "watchtower.pyz: no folder for programs was found. Set TMPDIR to a folder that "
                    "can be written and is not mounted with noexec\n"
                )
                return 2
            try:
                _unpack(archive, folder)
            except OSError as error:
                sys.stderr.write(
                    f"watchtower.pyz: cannot unpack its programs (12 MB) into "
                    f"{os.path.dirname(folder)}: {error.strerror}. Set TMPDIR to another folder\n"
                )
                return 2
        return _run(folder, words)
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _end(number, _frame):
    sys.exit(128 + number)


def _native():
    return f"native/cp{sys.version_info[0]}{sys.version_info[1]}/"


def _find_trouble(archive):
    """Return why this Python cannot run the programs; empty if it can."""
    version = platform.python_version()
    if sys.version_info < OLDEST:
        return f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, this is {version}"
    machine = archive.read("MACHINE").decode("ascii").strip()
    if platform.machine() != machine or not sys.platform.startswith("linux"):
        return f"this file is for Linux on {machine}, this machine is {platform.machine()}"
    if not any(name.startswith(_native()) for name in archive.namelist()):
        return f"this file contains nothing for Python {version}"
    return ""


def _make_folder():
    """Return a new folder of this user only, from which programs can be started; None if none."""
    variables, others = FOLDERS
    for parent in [os.environ.get(name) for name in variables] + list(others):
        try:
            if parent and not os.statvfs(parent).f_flag & os.ST_NOEXEC:
                return tempfile.mkdtemp(prefix="watchtower-", dir=os.path.abspath(parent))
        except OSError:
            pass  # the next one
    return None


def _unpack(archive, folder):
    for name in archive.namelist():
        if name.startswith(("packages/", "bin/", _native())) and not name.endswith("/"):
            archive.extract(name, folder)
    os.chmod(os.path.join(folder, "bin", "py-spy"), 0o700)


def _run(folder, words):
    sys.path[0:1] = [os.path.join(folder, "packages"), os.path.join(folder, _native())]
    sys.dont_write_bytecode = True
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.path.join(folder, "bin") + os.pathsep + path
    try:
        if words[0] in AGENT:
            from agent.cli import main as run  # noqa: PLC0415
        else:
            from watchtower.cli import main as run  # noqa: PLC0415
        return run(words) or 0
    except KeyboardInterrupt:  # while the programs are imported
        return 130
    except SystemExit as error:  # of the parser of the options, and of a signal
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
            return 1
        return error.code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
