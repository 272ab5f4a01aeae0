"""A tower with tokens and TLS, an agent and the commands, all as real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.delivery.shipping import REPLY_LIMITS
from tests.certificates import Authority, make_authority
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.access.tokens import SECRET_VARIABLES, find_client_token, write_token
from watchtower.access.tower_address import TowerAddress
from watchtower.access.tower_connection import TowerConnection, TowerError
from watchtower.cli import main
from watchtower.drills.children import Child

pytestmark = pytest.mark.e2e

ENVIRONMENT_TOKEN = "operator-token-from-the-environment"


@dataclass
class Place:
    """A tower that is protected, and what its users were given."""

    tower: RunningTower
    authority: Authority
    agent_token: str
    reader_token: str
    certificate: tuple[str, str]

    @property
    def tokens(self) -> list[str]:
        return [
            Path(self.agent_token).read_text().strip(),
            Path(self.reader_token).read_text().strip(),
        ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    authority = make_authority(folder)
    cert, key = authority.sign("tower")
    agent_token, reader_token = str(folder / "agents"), str(folder / "readers")
    write_token(agent_token)
    write_token(reader_token)
    words = ["--agent-token-file", agent_token, "--reader-token-file", reader_token]
    environment = {"WATCHTOWER_OPERATOR_TOKEN": ENVIRONMENT_TOKEN}
    with running_tower(
        folder, *words, "--tls-cert", cert, "--tls-key", key, environment=environment
    ) as tower:
        yield Place(tower, authority, agent_token, reader_token, (cert, key))


@pytest.fixture
def ask(place: Place, capsys: pytest.CaptureFixture[str]):
    def run(*words: str, ca: str | None = None, url: str | None = None) -> tuple[int, str, str]:
        ca_file = str(place.authority.file) if ca is None else ca
        more = ["--ca-file", ca_file] if ca_file else []
        status = main([*words, "--tower", url or place.tower.url, *more])
        text = capsys.readouterr()
        return status, text.out, text.err

    return run


def post(
    place: Place, token_file: str, url: str | None = None, ca_file: str | None = None
) -> bytes:
    """Post an empty report as an agent does."""
    address = TowerAddress(
        url=url or place.tower.url,
        token=find_client_token(token_file, {}),
        ca_file=str(place.authority.file) if ca_file is None else ca_file,
    )
    client = TowerConnection(address, REPLY_LIMITS)
    try:
        body = b'{"version": 1, "node": "n1", "agent_id": "a", "interval_s": 1.0}'
        return client.post("/ingest/v1/report", body)
    finally:
        client.close()


def test_the_first_line_is_a_url_over_tls(place):
    assert place.tower.url.startswith("https://127.0.0.1:")


def test_commands_need_a_readers_token_and_get_it_from_file_or_environment(place, ask, monkeypatch):
    status, _, err = ask("jobs")
    assert status == 2
    assert "needs a token" in err
    assert "--token-file" in err
    assert ask("jobs", "--token-file", place.reader_token)[0] == 0
    monkeypatch.setenv("WATCHTOWER_TOKEN_FILE", place.reader_token)
    assert ask("incidents")[0] == 0
    monkeypatch.setenv("WATCHTOWER_TOKEN_FILE", "")
    monkeypatch.setenv("WATCHTOWER_TOKEN", ENVIRONMENT_TOKEN)
    assert ask("jobs")[0] == 0


def test_an_agents_token_reads_nothing_and_a_readers_posts_nothing(place, ask):
    status, _, err = ask("jobs", "--token-file", place.agent_token)
    assert status == 2
    assert "but the token is for agent" in err
    assert b'"version"' in post(place, place.agent_token)
    with pytest.raises(TowerError, match=r"HTTP 403 .*but the token is for reader") as raised:
        post(place, place.reader_token)
    assert not raised.value.permanent


def test_an_agent_runs_with_its_token_and_shows_it_nowhere(place, tmp_path):
    log = tmp_path / "agent.log"
    command = [shutil.which("watchtower-agent", path=Path(sys.executable).parent), "run"]
    command += ["--tower", place.tower.url, "--node", "n7", "--port", "0", "--interval", "0.2"]
    command += ["--token-file", place.agent_token, "--ca-file", str(place.authority.file)]
    command += ["--log-level", "debug", "--match", "NOBODY=1"]
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as agent:
        try:
            wait_until(lambda: "the tower accepts reports" in log.read_text(), "the agent reports")
            for process in (agent, place.tower.process):
                for name in ("cmdline", "environ"):
                    text = Path(f"/proc/{process.pid}/{name}").read_bytes()
                    for token in place.tokens:
                        assert token.encode() not in text
        finally:
            agent.kill()
    for token in (*place.tokens, ENVIRONMENT_TOKEN):
        assert token not in log.read_text()
        assert token not in place.tower.log


def test_tools_of_the_agent_and_parts_of_a_drill_inherit_no_token(tmp_path, monkeypatch):
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, ENVIRONMENT_TOKEN)
    shown = ChildRunner().run([shutil.which("env")], 30.0).output.decode()
    assert "PATH=" in shown
    assert ENVIRONMENT_TOKEN not in shown
    child = Child("env", [shutil.which("env")], tmp_path, environment={"RANK": "0"})
    wait_until(lambda: child.exit_code() is not None, "env ends")
    assert "RANK=0" in child.output.read_text()
    assert ENVIRONMENT_TOKEN not in child.output.read_text()


def test_tokens_are_rotated_without_a_restart(place, tmp_path):
    old = tmp_path / "old"
    shutil.copy(place.agent_token, old)
    write_token(place.agent_token)
    fresh = tmp_path / "fresh"
    fresh.touch(mode=0o600)
    fresh.write_text(Path(place.agent_token).read_text().splitlines()[1])

    def is_taken(file: Path) -> bool:
        try:
            return bool(post(place, str(file)))
        except TowerError as error:
            return "HTTP 401" not in error.reason

    wait_until(lambda: is_taken(fresh), "the new token is valid")
    assert is_taken(old), "both are valid for a while"
    Path(place.agent_token).write_text(fresh.read_text())
    wait_until(lambda: not is_taken(old), "the old token is void")
    assert is_taken(fresh)


def test_a_certificate_of_an_unknown_authority_is_refused_in_words(place, ask):
    status, _, err = ask("jobs", "--token-file", place.reader_token, ca="")
    assert status == 3
    assert "signed by an authority that is not trusted here" in err
    assert "--ca-file" in err
    with pytest.raises(TowerError, match="authority that is not trusted") as raised:
        post(place, place.agent_token, ca_file="")
    assert not raised.value.permanent


def test_the_name_in_the_certificate_is_checked(place, ask):
    other = place.tower.url.replace("127.0.0.1", "localhost")
    status, _, err = ask("jobs", "--token-file", place.reader_token, url=other)
    assert status == 3
    assert "the tower's certificate is for another name" in err
    with pytest.raises(TowerError, match="for another name"):
        post(place, place.agent_token, url=other)


def test_http_against_tls_is_told(place, ask):
    plain = place.tower.url.replace("https", "http")
    status, _, err = ask("jobs", url=plain)
    assert status == 3
    assert "if it uses TLS, use https://" in err
    with pytest.raises(TowerError, match="if it uses TLS, use https://"):
        post(place, place.agent_token, url=plain)


def test_tls_against_http_is_told(place, ask, tmp_path):
    with running_tower(tmp_path) as tower:
        secure = tower.url.replace("http", "https")
        status, _, err = ask("jobs", url=secure)
        assert status == 3
        assert "the server does not use TLS" in err
        with pytest.raises(TowerError, match="the server does not use TLS"):
            post(place, place.agent_token, url=secure)


def test_a_certificate_is_renewed_without_a_restart_and_an_expired_one_is_told(place):
    whole = [Path(path).read_bytes() for path in place.certificate]

    def put(cert: bytes, key: bytes) -> None:
        for path, content in zip(place.certificate, (cert, key), strict=True):
            Path(path).write_bytes(content)

    def trouble() -> str:
        try:
            post(place, place.agent_token)
        except TowerError as error:
            return error.reason
        return ""

    old = [Path(path).read_bytes() for path in place.authority.sign("old", days=-1)]
    assert trouble() == ""
    try:
        put(*old)
        wait_until(lambda: "certificate has expired" in trouble(), "the new one is in use")
        put(b"no certificate", whole[1])
        wait_until(lambda: "are not a matching" in place.tower.log, "the broken one is told")
        assert "expired" in trouble()
    finally:
        put(*whole)
    wait_until(lambda: trouble() == "", "the good one is in use again")


def test_a_token_is_not_sent_in_the_open_to_another_machine(place, ask):
    status, _, err = ask("jobs", "--token-file", place.reader_token, url="http://192.0.2.1:1")
    assert status == 2
    assert "use https://, or add --insecure" in err


def test_a_tower_that_cannot_use_its_files_does_not_start(place, tmp_path, capsys):
    open_file = tmp_path / "open"
    open_file.write_text(ENVIRONMENT_TOKEN)
    open_file.chmod(0o644)
    cert, key = place.certificate
    data = ["serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    for words, text in (
        (["--agent-token-file", str(open_file)], "every user of this machine can access"),
        (["--agent-token-file", "/nowhere"], "cannot read the token file /nowhere"),
        (["--tls-cert", cert], "belong together"),
        (["--tls-cert", cert, "--tls-key", cert], "are not a matching certificate and key"),
        (["--tls-cert", "/nowhere", "--tls-key", key], "No such file"),
    ):
        assert main([*data, *words]) == 2
        err = capsys.readouterr().err
        assert text in err
        assert ENVIRONMENT_TOKEN not in err
    assert not os.path.exists(tmp_path / "data")


def test_a_token_is_made_for_its_owner(tmp_path, capsys):
    assert main(["token"]) == 0
    assert len(capsys.readouterr().out.strip()) == 43
    assert main(["token", str(tmp_path / "t")]) == 0
    text = capsys.readouterr().out
    assert text == f"{tmp_path / 't'}: a new token is its last line\n"
    assert (tmp_path / "t").read_text("ascii").strip() not in text
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600
