"""What a person types, and what comes back."""

import os
import socket
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest
from forked import FAIRLEAD, fork
from typer.testing import CliRunner

from gateway.cli import app
from gateway.config import load_config
from gateway.config.key_file import key_hmac, read_keys
from policies import scheduler

MODULES_MAX = 1000  # of a start, at 0.5 ms and 60 KB each
KEYS_YAML = "auth: {mode: keys}\ntenants: {alice: {weight: 2}, bob: {}}\n"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_CONFIG", raising=False)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def keys_config(tmp_path):
    path = tmp_path / "fairlead.yaml"
    path.write_text(KEYS_YAML)
    return str(path)


@pytest.mark.parametrize("command", [[], ["serve"], ["check-config"], ["example-config"], ["keys"], ["keys", "new"]])
def test_every_command_explains_itself(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_the_version_is_that_of_the_distribution_and_says_whether_it_is_compiled():
    compiled = " (compiled)" if scheduler.__file__.endswith(".so") else ""
    assert run("--version").output == f"fairlead {metadata.version('fairlead')}{compiled}\n"


def test_help_does_not_load_the_server():
    code = (
        "import sys; from gateway.cli import app; "
        "sys.exit(bool({'aiohttp', 'asyncio', 'pydantic', 'tiktoken', 'orjson', 'curses'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_watching_a_remote_gateway_loads_neither_the_server_nor_a_configuration():
    code = (
        "import sys; from pathlib import Path; import gateway.cli, gateway.top.terminal; "
        "from gateway.admin.command.target import find_admin; "
        "find_admin(None, url='http://gateway', key_file=Path('key')); "
        "sys.exit(', '.join({'aiohttp', 'pydantic', 'orjson', 'rich', 'yaml', 'asyncio'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.stderr.strip() == ""


OFF = {"redis", "jwt", "cryptography", "opentelemetry", "matplotlib", "kubernetes_asyncio", "rich", "tiktoken"}
OFF_BEHIND_BACKENDS = OFF | {
    "aiohttp",
    "backends.engine.http.server",
    "gateway.admin.port",
    "gateway.admin.page_files",
    "gateway.serve_workers",
}
BACKEND_YAML = "listen: {port: 0}\nbackends: [{url: 'http://127.0.0.1:9'}]\n"


@pytest.mark.parametrize(("yaml", "off"), [(None, OFF), (BACKEND_YAML, OFF_BEHIND_BACKENDS)])
def test_a_start_loads_only_what_is_on(tmp_path, yaml, off):
    """What is off by default takes a tenth to a half of a second, and up to 11 MB. Without a configuration the embedded
    engine and the admin port are on.
    """
    if yaml is not None:
        (tmp_path / "fairlead.yaml").write_text(yaml)
    code = (
        "import gc, os, signal, sys, gateway.serve, gateway.cli\n"
        "collects = []\n"
        "gateway.serve._greet = lambda *_: (collects.append(gc.isenabled()), os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['fairlead', 'serve', '--port', '0']\n"
        "try:\n    gateway.cli.main()\n"
        "except SystemExit:\n    print(*sys.modules, file=open('modules', 'w'))\n"
        "    assert collects == [True], 'garbage is collected once it serves'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)
    loaded = set((tmp_path / "modules").read_text().split())
    assert "gateway.handlers.handlers" in loaded
    assert not loaded & off
    assert len(loaded) < MODULES_MAX


def test_the_example_can_be_written_to_a_file_and_checked(tmp_path):
    (tmp_path / "fairlead.yaml").write_text(run("example-config").output)
    result = run("check-config", "fairlead.yaml")
    assert result.exit_code == 0
    assert "fairlead.yaml: valid" in result.output
    assert "embedded engine" in result.output


def test_a_wrong_configuration_is_told_with_exit_code_1(tmp_path):
    (tmp_path / "bad.yaml").write_text("listen:\n  prot: 1\nqueue: {wait_s_max: x}\n")
    result = run("check-config", "bad.yaml")
    assert result.exit_code == 1
    assert "bad.yaml:2: listen.prot: there is no such key (did you mean 'port'?)\n" in result.stderr
    assert "bad.yaml:3: queue.wait_s_max: " in result.stderr


def test_a_new_key_is_printed_once_and_opens_the_gateway(keys_config):
    result = run("keys", "new", "alice", "--config", keys_config)
    assert result.exit_code == 0
    key = result.stdout.strip()
    assert key.startswith("fl-")
    auth = load_config(Path(keys_config)).auth
    assert [(each.tenant, each.hmac) for each in read_keys(auth.keys_file)] == [
        ("alice", key_hmac(auth.given_secret(), key).hex())
    ]
    listed = run("keys", "list", "--config", keys_config).stdout
    assert f"...{key[-4:]}" in listed
    assert key not in listed


@pytest.mark.parametrize("command", ["example-config", "--help", "--version", "simulate --help", "keys new alice"])
def test_an_output_that_cannot_be_written_is_told_in_one_line_and_leaves_no_key(command, keys_config):
    program = Path(sys.executable).with_name("fairlead")
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [program, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False,
            env={**os.environ, "FAIRLEAD_CONFIG": keys_config},
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.endswith("No space left on device\n")
    assert result.stderr.count("\n") == 1
    assert read_keys(load_config(Path(keys_config), check_files=False).auth.keys_file) == []


def test_check_config_tells_whose_keys_are_missing_or_refused(keys_config, tmp_path):
    run("keys", "new", "alice", "--config", keys_config)
    result = run("check-config", keys_config)
    assert f"auth: keys, 1 in {Path(keys_config).parent}/fairlead.keys" in result.output
    assert "tenants without a key: bob" in result.output
    (tmp_path / "fairlead.yaml").write_text("auth: {mode: keys}\ntenants: {bob: {}}\n")
    assert "refused: alice" in run("check-config", keys_config).output


def test_a_key_for_a_tenant_that_is_not_configured_is_refused(keys_config, tmp_path):
    result = run("keys", "new", "alcie", "--config", keys_config)
    assert result.exit_code == 1
    assert "did you mean 'alice'?" in result.stderr
    assert not (tmp_path / "fairlead.keys").exists()


def test_a_key_in_open_mode_comes_with_a_warning():
    result = run("keys", "new", "alice")
    assert result.exit_code == 0
    assert "not checked" in result.stderr


def test_a_lost_secret_is_told_and_not_replaced(keys_config, tmp_path):
    run("keys", "new", "alice", "--config", keys_config)
    (tmp_path / "fairlead.secret").unlink()
    result = run("keys", "new", "bob", "--config", keys_config)
    assert result.exit_code == 1
    assert "restore it" in result.stderr
    assert not (tmp_path / "fairlead.secret").exists()


def test_a_revoked_key_is_gone(keys_config):
    key = run("keys", "new", "alice", "--config", keys_config).stdout.strip()
    assert run("keys", "revoke", "zzzz", "-c", keys_config).exit_code == 1
    assert run("keys", "revoke", key[-2:], "-c", keys_config).exit_code == 1
    assert run("keys", "revoke", key[-4:], "-c", keys_config).exit_code == 0
    assert run("keys", "list", "-c", keys_config).stdout == ""


def test_serve_passes_the_configuration_with_host_and_port_from_the_command_line(keys_config, monkeypatch):
    run("keys", "new", "alice", "--config", keys_config)
    served = []
    monkeypatch.setitem(sys.modules, "gateway.serve", types.SimpleNamespace(serve=lambda *given: served.append(given)))
    result = run("serve", "--config", keys_config, "--port", "9000")
    assert result.exit_code == 0
    ((config, file),) = served
    assert str(file) == keys_config
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 9000)
    assert set(config.tenants) == {"alice", "bob"}


def test_serve_does_not_start_with_a_wrong_configuration(keys_config):
    result = run("serve", "--config", keys_config)
    assert result.exit_code == 1
    assert "auth.keys_file" in result.stderr


async def refused(folder, *arguments):
    """What `fairlead serve` says of a start that fails."""
    process = await fork(FAIRLEAD, "serve", *arguments, folder=folder, environment=dict(os.environ))
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in errors
    return errors.decode()


async def test_serve_says_in_one_line_that_its_port_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = await refused(tmp_path, "--port", str(taken.getsockname()[1]))
    assert "in use. Stop what listens there, or set another port" in said


async def test_serve_does_not_touch_a_state_file_that_is_not_its_own_and_names_it(tmp_path):
    diary = tmp_path / "fairlead.db"
    diary.write_text("dear diary\n" * 50)
    (tmp_path / "fairlead.yaml").write_text("admin: {enabled: true, port: 0}\nlisten: {port: 0}\n")
    assert "fairlead.db is not a state file of fairlead" in await refused(tmp_path, "-c", "fairlead.yaml")
    assert diary.read_text() == "dear diary\n" * 50
