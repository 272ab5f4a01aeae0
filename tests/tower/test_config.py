"""Settings from file and command line. Every error contains key, value and allowed values."""

import re

import pytest

from watchtower.access.tokens import Scope, TokenBook
from watchtower.app import OPEN_TO_ALL, find_warnings, make_people
from watchtower.cli import main
from watchtower.config import load_config
from watchtower.service.settings import ConfigError
from watchtower.wire.verdict import Cause


@pytest.fixture
def config(tmp_path):
    def write(text: str, **flags):
        path = tmp_path / "watchtower.toml"
        path.write_text(text)
        return load_config(path, flags)

    return write


def test_without_a_file_everything_has_a_default():
    config = load_config(None, {})
    assert (config.host, config.port) == ("127.0.0.1", 19660)
    assert config.policy.suspect_floor_s == 5


def test_a_file_changes_what_it_names(config):
    read = config("[detection]\nsuspect_floor_s = 2\n[tower]\nport = 0\n[drill]\nstep_s = 0.1\n")
    assert read.policy.suspect_floor_s == 2
    assert read.policy.hung_floor_s == 10
    assert read.port == 0


def test_the_command_line_wins_over_the_file(config):
    assert config("[tower]\nport = 1\n", port=2, host=None).port == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[detection]\nsuspect_flor_s = 1",
            r"`suspect_flor_s` in .*: did you mean `suspect_floor_s`\?",
        ),
        ("[detection]\nsettle_s = -2", r"in \[detection\]: `settle_s` is -2, allowed is 0.1 to"),
        ("[detection]\nsettle_s = 'x'", r"`settle_s` is 'x', allowed is a number"),
        (
            "[tower]\npolicy = 1",
            r"unknown setting `policy` in \[tower\], allowed: advisories_off, agent_token_file",
        ),
        ("[tower]\ndatabase = 'mysql://db'", r"`database` must start with postgresql://"),
        ("[tower]\ndatabase = 'postgresql://a:b@db/x'", r"`database` contains a password"),
        ("[tower]\ndatabase = 'postgresql://db/x?password=b'", r"`database` contains a passw"),
        ("[tower]\nport = 99999", r"`port` is 99999, allowed is 0"),
        ("[tower]\nport = true", r"`port` is True, allowed is 0 \(pick one\) to 65535"),
        ("[tower]\ninsecure = 1", r"`insecure` is 1, allowed is true or false"),
        ("[tower]\nhost = 1", r"`host` is 1, allowed is a string"),
        ("[tower]\ndata_dir = ''", r"`data_dir` is '', allowed is the name of a folder"),
        ("[retention]\njobs = 1", r"in \[retention\]: `jobs` is 1, allowed is 5000 to 1e\+07"),
        ("[detection]\nsettle_s = nan", r"`settle_s` is nan, allowed is 0.1 to"),
        ("[alerts]\nshadow = 1", r"`shadow` is 1, allowed is true or false"),
        (
            "[alerts]\nshadow_causes = ['slow']",
            r"`shadow_causes` is \['slow'\], allowed is a list of causes \(docs/verdicts.md\)",
        ),
        ("[pages]\nlinks = 1", r"`links` is 1, allowed is a table such as"),
        ("[pages]\nlinks = {a = 'ftp://x'}", r"`links.a` in \[pages\] must begin with https://"),
        (
            "[pages]\nuser_header = 'X-User'",
            r"`user_header` and `trusted_proxies` belong together",
        ),
        (
            "[pages]\nuser_header = 'X-User'\ntrusted_proxies = ['10.0.0.1/8']",
            r"`trusted_proxies` has '10.0.0.1/8', allowed is an address or a network",
        ),
        ("[pages]\nuser_header = 'X User'", r"`user_header` is 'X User', allowed is the name of"),
        ("[pages]\nuser_scope = 'agent'", r"`user_scope` is 'agent', allowed is .reader. or"),
        ("[pages]\nsession_hours = 0", r"`session_hours` is 0, allowed is 0.1 to 8760"),
        ("[towre]\nport = 1", r"unknown table `towre` in .*, allowed are \[detection\]"),
        ("[tower", r"is not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(config, text, words):
    with pytest.raises(ConfigError, match=words):
        config(text)


def test_every_error_of_a_file_is_named_at_once(config):
    with pytest.raises(ConfigError) as error:
        config(
            "[detection]\nsettle_s = -2\nhung_floor_s = 'x'\nsuspect_flor_s = 1\n"
            "[tower]\nport = 99999\n[retention]\njobs = 1\ndays = -1\n[alerts]\nshadow = 1\n"
        )
    named = [re.search(r"`(\w+)`", line)[1] for line in str(error.value).splitlines()]
    assert named == ["port", "suspect_flor_s", "hung_floor_s", "settle_s", "days", "jobs", "shadow"]


def test_a_check_reads_the_files_that_a_start_reads(tmp_path, capsys):
    file, tokens = tmp_path / "tower.toml", tmp_path / "tokens"
    file.write_text(
        f"[tower]\nreader_token_file = '{tokens}'\ntls_cert = 'a.pem'\ntls_key = 'a.key'\n"
        "[alerts]\nslack_webhook_file = 'hook'\n"
    )
    assert main(["serve", "--check", "--config", str(file)]) == 2
    shown = capsys.readouterr().err
    for name in (str(tokens), "a.pem", "slack_webhook_file"):
        assert name in shown
    tokens.write_text("a-token-of-readers-0123456789abcdef\n")
    tokens.chmod(0o600)
    file.write_text(f"[tower]\nreader_token_file = '{tokens}'\n")
    assert main(["serve", "--check", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "warning: there is no token for agents" in shown
    assert shown.endswith("the settings are valid\n")


def test_causes_in_shadow_mode_are_read_by_name(config):
    read = config('[alerts]\nshadow_causes = ["straggler", "gil_held"]\n').alerts
    assert (read.shadow, read.shadow_causes) == (False, (Cause.STRAGGLER, Cause.GIL_HELD))


def test_links_of_pages_are_read_by_name(config):
    links = {"Logs": "https://logs.example/?job={job}"}
    assert config(f'[pages]\nlinks = {{Logs = "{links["Logs"]}"}}\n').pages.links == links


def test_a_proxy_may_name_persons(config, tmp_path):
    text = 'user_header = "X-User"\ntrusted_proxies = ["10.0.0.7", "fd00::/8"]\n'
    people = make_people(
        config(f'[pages]\n{text}user_scope = "operator"\n', data_dir=str(tmp_path))
    )
    sent = {"headers": [(b"x-user", b"alice")]}
    assert people.trusted.scope is Scope.OPERATOR
    assert people.trusted.find({**sent, "client": ("fd00::1", 1)}) == "alice"
    assert people.trusted.find({**sent, "client": ("10.0.0.8", 1)}) == ""


def test_names_from_a_proxy_without_tokens_are_a_warning(config):
    text = '[pages]\nuser_header = "X-User"\ntrusted_proxies = ["10.0.0.7"]\n'
    assert find_warnings(config(text), TokenBook({}, {})) == [OPEN_TO_ALL]
    assert find_warnings(config(""), TokenBook({}, {})) == []
    names = [scope.value for scope in Scope]
    book = TokenBook({}, {f"WATCHTOWER_{name.upper()}_TOKEN": name * 8 for name in names})
    assert find_warnings(config(text), book) == []


@pytest.mark.parametrize(
    ("url", "is_secure"), [("https://t", True), ("http://t", False), ("", False)]
)
def test_the_cookie_is_secure_where_people_use_tls(config, url, is_secure):
    assert config(f'[tower]\npublic_url = "{url}"\n').is_secure is is_secure


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(tmp_path / "none.toml", {})


def test_an_address_other_than_loopback_needs_an_explicit_setting(config):
    for host in ("0.0.0.0", "10.0.0.1", "tower", "::"):
        with pytest.raises(ConfigError, match="--insecure"):
            config("", host=host)
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert config("", host=host).host == host
    assert config("", host="0.0.0.0", insecure=True).insecure


def test_tokens_open_any_address_and_their_options_are_named_where_they_are_missing(config):
    with pytest.raises(ConfigError, match="--agent-token-file and --reader-token-file"):
        config("", host="0.0.0.0")
    assert config("[tower]\nagent_token_file = 'a'", host="0.0.0.0").token_files
    environment = {"WATCHTOWER_AGENT_TOKEN": "x" * 16}
    assert load_config(None, {"host": "0.0.0.0"}, environment).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tls_cert = 'c'", "`tls_cert` and `tls_key` belong together"),
        ("tls_key = 'k'", "`tls_cert` and `tls_key` belong together"),
        ("reader_token_file = 7", "`reader_token_file` is 7, allowed is the name of a file"),
        ("agent_token = 'x'", "unknown setting `agent_token` in"),
    ],
)
def test_files_of_tokens_and_certificates_are_checked(config, text, words):
    with pytest.raises(ConfigError, match=words):
        config(f"[tower]\n{text}")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("", ""),
        ("https://tower.example", "https://tower.example"),
        ("http://tower:19660/", "http://tower:19660"),
        ("https://[fd00::1]:19660/ops/watchtower//", "https://[fd00::1]:19660/ops/watchtower"),
    ],
)
def test_the_public_address_is_kept_without_a_slash_at_its_end(config, url, kept):
    assert config(f"[tower]\npublic_url = {url!r}").public_url == kept


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("'tower:19660'", "`public_url` is 'tower:19660': must start with http:// or https://"),
        ("'ftp://tower'", "must start with http:// or https://"),
        ("'HTTP://tower'", "must start with http:// or https://"),
        ("7", "`public_url` is 7, allowed is a URL such as https://tower:19660"),
        ("'https://'", "must be a host, a port and a path, such as https://tower:19660"),
        ("'https:///path'", "must be a host"),
        ("'https://tower:x'", "must be a host"),
        ("'https://tower:99999'", "must be a host"),
        ("'https://[tower'", "must be a host"),
        ("'https://ann:secret@tower'", "must be a host"),
        ("'https://tower/?job=x'", "must be a host"),
        ("'https://tower/#x'", "must be a host"),
        ("'https://tower/a b'", "must be a host"),
        ('"https://tower/\\u001b"', "must be a host"),
        (f"'https://{'t' * 300}'", "of at most 256 characters"),
    ],
)
def test_a_public_address_that_cannot_be_used_is_refused(config, url, text):
    with pytest.raises(ConfigError, match=text):
        config(f"[tower]\npublic_url = {url}")
