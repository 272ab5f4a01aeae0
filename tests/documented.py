"""The console blocks of the documents: each is executed by a test, or there is a reason why not.

A runbook is not listed: `tests/contract/test_runbooks.py` checks its commands. A new block needs an
entry, by its page and how its first line begins. `HERE` executes it as it is printed.
"""

from __future__ import annotations

from pathlib import Path

from tests.console import find_blocks

ROOT = Path(__file__).parents[1]

HERE = "tests/system/commands/test_documented.py::test_a_block_of_a_document_runs_as_printed"

CLUSTER = "not run: it needs the machines of a site"
NETWORK = "not run: it needs a registry or a service outside the machine"
LONG = "not run: it runs until it is ended, or for minutes; CI runs the same target"

_DISTRIBUTION = (
    "tests/system/deploy/test_distributions.py::"
    "test_what_is_installed_runs_and_names_the_rank_of_a_drill"
)
_UP = "tests/system/commands/test_up.py::test_it_names_the_rank_of_a_job_on_this_machine"
_AUTO = "tests/system/heartbeat/test_auto.py::test_uninstalling_takes_the_switch_away"
_DEMAND = (
    "tests/system/snapshots/test_on_demand.py::test_a_job_that_is_not_suspect_is_dumped_on_demand"
)
_INSTALL = "tests/system/deploy/test_install.py::test_a_daemon_is_installed_runs_and_leaves_again"
_PACKAGES = (
    "tests/system/deploy/test_packages.py::"
    "test_they_are_installed_name_a_rank_are_upgraded_and_leave_nothing_but_data"
)
_IMAGES = (
    "tests/system/deploy/test_images.py::test_the_pods_of_the_manifest_name_the_rank_of_a_drill"
)
ENGINE = "not run: no container engine and no cluster is here; tests/deploy checks what it reads"
_SLURM = (
    "tests/system/slurm/test_slurm.py::"
    "test_a_job_hangs_its_node_is_drained_and_the_commands_of_its_page_are_run"
)
_NOTIFY = (
    "tests/system/drills/test_notify.py::test_a_destination_gets_the_alert_of_a_drill_and_its_end"
)
_COPY = "tests/system/store/test_copying.py::test_a_copy_to_postgres_and_back_is_the_same"
_BACKUP = "tests/system/store/test_copying.py::test_a_backup_of_the_file_while_the_tower_writes"
_SNAPSHOT = (
    "tests/system/snapshots/test_snapshots.py::"
    "test_a_hung_job_on_two_nodes_is_diagnosed_from_two_files"
)
_RECORDING = (
    "tests/tower/test_replay.py::test_the_recording_of_a_restarted_tower_goes_on_with_the_incident"
)

BLOCKS: dict[tuple[str, str], str] = {
    ("README.md", "make demo"): LONG,
    ("README.md", "python3 -m venv"): _UP,
    ("README.md", "pip install ./heartbeat"): _AUTO,
    ("CONTRIBUTING.md", "make test "): LONG,
    ("CONTRIBUTING.md", ".venv/bin/python -m pytest"): "not run: it writes goldens anew",
    ("dashboards/README.md", "cp -r dashboards"): CLUSTER,
    ("docs/alerts.md", "watchtower incidents"): HERE,
    ("docs/alerts.md", "promtool check"): (
        "tests/system/test_alert_rules.py::test_promtool_accepts_the_files"
    ),
    ("docs/bots.md", 'curl "$WATCHTOWER_URL'): NETWORK,
    ("docs/bots.md", "WATCHTOWER_URL=https"): (
        "tests/system/test_example_bot.py::"
        "test_the_bot_posts_a_new_incident_once_although_the_webhook_was_away"
    ),
    ("docs/bots.md", "pip install 'gpu-watchtower[mcp]'"): (
        "tests/system/commands/test_mcp.py::test_the_tools_answer_about_an_incident"
    ),
    ("docs/bots.md", "watchtower export"): HERE,
    ("docs/bots.md", "watchtower serve --record"): _RECORDING,
    ("docs/bots.md", "watchtower postmortem"): HERE,
    ("docs/commands.md", "watchtower up"): _UP,
    ("docs/commands.md", "watchtower why llama-70b --now"): _DEMAND,
    ("docs/commands.md", "watchtower incidents --status"): HERE,
    ("docs/commands.md", "watchtower silence"): HERE,
    ("docs/commands.md", "watchtower alert test"): (
        "tests/system/test_apprise.py::test_the_opening_and_the_end_are_one_message_each"
    ),
    ("docs/commands.md", "watchtower drill dataloader_sleep --notify"): _NOTIFY,
    ("docs/commands.md", "source <(watchtower completion bash)"): (
        "tests/system/commands/test_completion.py::test_the_shell_reads_its_script"
    ),
    ("docs/doctor.md", "watchtower-agent doctor"): "not run: its answer is that of a broken node",
    ("docs/doctor.md", "install -m 755"): _SLURM,
    ("docs/doctor.md", "watchtower doctor --between"): (
        "tests/system/agent/test_path.py::"
        "test_a_path_is_right_and_an_mtu_black_hole_between_the_nodes_is_found"
    ),
    ("docs/doctor.md", "watchtower run"): (
        "tests/system/commands/test_handing_over.py::"
        "test_a_hung_job_has_its_verdict_in_its_log_and_ends_with_a_code_of_its_own"
    ),
    ("docs/doctor.md", "watchtower requeue"): _SLURM,
    ("docs/gpu-notes.md", "make test-gpu"): "not run: it needs GPUs",
    ("docs/heartbeat.md", "pip install ./heartbeat"): _AUTO,
    ("docs/heartbeat.md", "pip install --no-deps"): (
        "tests/system/heartbeat/test_zero_touch.py::"
        "test_steps_are_counted_in_an_environment_without_the_client"
    ),
    ("docs/install.md", "make dist"): _DISTRIBUTION,
    ("docs/install.md", "make packages"): _PACKAGES,
    ("docs/install.md", "ansible-playbook"): CLUSTER,
    ("docs/install.md", "make images"): _IMAGES,
    ("docs/install.md", "docker compose"): ENGINE,
    ("docs/kubernetes.md", "helm install"): ENGINE,
    ("docs/install.md", "make install-tower"): (
        "tests/system/deploy/test_install.py::"
        "test_the_tower_is_installed_in_the_same_way_with_what_it_needs"
    ),
    ("docs/install.md", "cd /etc/watchtower"): CLUSTER,
    ("docs/install.md", "make install-agent"): _INSTALL,
    ("docs/install.md", "systemctl edit"): CLUSTER,
    ("docs/install.md", "pip install ./heartbeat"): _AUTO,
    ("docs/install.md", "/opt/watchtower/bin/watchtower drill"): _DISTRIBUTION,
    ("docs/install.md", "watchtower-agent run"): _INSTALL,
    ("docs/install.md", "git pull"): _INSTALL,
    ("docs/install.md", "systemctl disable"): _INSTALL,
    ("docs/my-job-hung.md", "watchtower diagnose"): HERE,
    ("docs/operations.md", "pip install"): (
        "tests/system/store/test_tower_on_postgres.py::"
        "test_an_incident_of_a_drill_is_there_after_the_tower_was_killed"
    ),
    ("docs/operations.md", "watchtower store copy"): _COPY,
    ("docs/operations.md", "sqlite3"): _BACKUP,
    ("docs/security.md", "watchtower token"): (
        "tests/system/e2e/test_protected.py::"
        "test_commands_need_a_readers_token_and_get_it_from_file_or_environment"
    ),
    ("docs/single-sign-on.md", "oauth2-proxy"): NETWORK,
    ("docs/slurm.md", "pip install --no-deps"): _SLURM,
    ("docs/snapshots.md", "watchtower-agent snapshot"): _SNAPSHOT,
}


def list_blocks() -> list[tuple[str, str]]:
    """Return the page and the text of each block that the table is about."""
    pages = [path for name in ("", "dashboards") for path in (ROOT / name).glob("*.md")]
    pages += [path for path in (ROOT / "docs").rglob("*.md") if "runbooks" not in path.parts]
    pages += (ROOT / "deploy").rglob("*.md")
    named = sorted((str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in pages)
    return [(name, block) for name, text in named for block in find_blocks(text)]


def find_entry(page: str, block: str) -> tuple[str, str] | None:
    """Return the key of a block in the table, the longest that fits; None if it has none."""
    fitting = [key for key in BLOCKS if key[0] == page and block[2:].startswith(key[1])]
    return max(fitting, key=lambda key: len(key[1]), default=None)
