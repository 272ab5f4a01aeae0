"""A PostgreSQL server on a free port, with its data in a folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

USER = "nobody"
"""The server refuses to run as root."""

FAST = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB")


def find_programs() -> Path | None:
    """The folder of the programs; None if there are none."""
    installed = sorted(glob("/usr/lib/postgresql/*/bin/postgres"))
    found = installed[-1] if installed else shutil.which("postgres")
    return Path(found).parent if found else None


class PostgresServer:
    """Starts and stops a server. It keeps its data and its port."""

    def __init__(self) -> None:
        programs = find_programs()
        assert programs is not None
        # Not below pytest's folders: each run of pytest closes those to other users.
        self._folder = TemporaryDirectory(prefix="watchtower-postgres-")
        self.programs, self.folder = programs, Path(self._folder.name)
        self._user = {"user": USER} if os.geteuid() == 0 else {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.data = self.folder / "data"
        if self._user:
            os.chown(self.folder, pwd.getpwnam(USER).pw_uid, -1)
        command = [programs / "initdb", "-D", self.data, "-U", "tower", "-A", "trust", "-N", "-E"]
        command += ["UTF8", "--locale", "C.UTF-8"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._user)

    def url(self, space: str) -> str:
        return f"postgresql://tower@127.0.0.1:{self.port}/{space}"

    def start(self) -> None:
        options = [part for each in FAST for part in ("-c", each)]
        options += ["-k", "", "-h", "127.0.0.1", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, *options],
                stdout=log,
                stderr=log,
                cwd="/",
                **self._user,
            )
        for _ in range(600):
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
        raise TimeoutError((self.folder / "log").read_text())

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it with its connections, SIGQUIT as a crash."""
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(30)

    def make_space(self, name: str) -> str:
        """Make an empty namespace in the database; returns the address of a store in it."""
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url('postgres')}?options=-csearch_path%3D{name}"

    def execute(self, sql: str) -> list[tuple]:
        with psycopg.connect(self.url("postgres"), autocommit=True) as link:
            found = link.execute(sql)
            return found.fetchall() if found.description else []

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGQUIT)
        self._folder.cleanup()

    def children(self) -> list[int]:
        """The pids of its processes besides the first."""
        assert self.process is not None
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]
