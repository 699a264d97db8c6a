"""Relative paths of a configuration are relative to its file, wherever a command is started from."""

import os
from pathlib import Path

import pytest

from gateway.config import Config, ConfigError
from gateway.config.files import resolve_files
from gateway.config.load import load_config
from gateway.registry.resource_kinds import ManagedBackend

SECRET = "s" * 32


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The folder of the configuration, and another one that the process is in."""
    conf, elsewhere = tmp_path / "conf", tmp_path / "elsewhere"
    conf.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return conf, elsewhere


def test_every_path_of_every_section_is_relative_to_the_configuration_file(folders):
    conf, _ = folders
    (conf / "fairlead.yaml").write_text(
        """
backends:
  - {url: "https://a:1", api_key_file: keys/a, ca_file: ca.pem, step_time_file: step.yaml}
  - {url: "https://b:1", cert_file: c.pem, key_file: k.pem}
auth: {mode: keys, secret_file: secret, keys_file: keys}
tenants: {a: {}}
admin: {key_file: admin-key}
state: {file: state.db, redis: {url: "rediss://r:1", password_file: redis-password, ca_file: redis-ca.pem}}
prompt_tokens: {ranks_file: ranks.tiktoken}
access_log: {path: access.jsonl}
trace_log: {path: trace.jsonl}
jwt: {data: [{issuer: "https://i", audience: a, ca_file: jwt-ca.pem}]}
"""
    )
    config = load_config(conf / "fairlead.yaml", check_files=False)
    found = set()

    def collect(value):
        if isinstance(value, os.PathLike):
            found.add(os.fspath(value))
        elif isinstance(value, dict | tuple):
            for item in value.values() if isinstance(value, dict) else value:
                collect(item)

    collect(config.model_dump())
    names = "keys/a ca.pem step.yaml secret keys admin-key state.db redis-password redis-ca.pem ranks.tiktoken"
    names += " c.pem k.pem access.jsonl trace.jsonl jwt-ca.pem"
    assert found == {str(conf / name) for name in names.split()}


def test_a_configuration_that_is_named_by_a_relative_path_means_the_same(folders):
    conf, _ = folders
    (conf / "fairlead.yaml").write_text("auth: {secret_file: secret}\n")
    assert load_config(Path("../conf/fairlead.yaml")).auth.secret_file.resolve() == conf.resolve() / "secret"


def test_absolute_paths_standard_output_and_configurations_without_a_file_stay_as_they_are(folders):
    conf, _ = folders
    (conf / "fairlead.yaml").write_text("auth: {secret_file: /run/secret}\n")
    config = load_config(conf / "fairlead.yaml")
    assert (str(config.auth.secret_file), str(config.access_log.path)) == ("/run/secret", "-")
    assert str(load_config(None).auth.secret_file) == "fairlead.secret"


def test_a_backend_that_comes_by_the_admin_api_has_its_files_there_too(folders):
    conf, _ = folders
    backend = ManagedBackend(url="http://a:1", api_key_file="key")
    assert resolve_files(backend, conf).api_key_file == conf / "key"
    config = Config().placed_in(conf)
    assert config.folder == conf
    assert config.model_copy(update={"listen": config.listen}).folder == conf


@pytest.mark.parametrize(
    ("setting", "name"),
    [("auth: {mode: keys}", "fairlead.secret"), ("auth: {mode: keys}", "fairlead.keys"), ("", "fairlead.admin-key")],
)
def test_a_secret_that_lies_in_the_working_directory_is_pointed_at_and_none_is_made(folders, setting, name):
    conf, elsewhere = folders
    (elsewhere / name).write_text(SECRET)
    file = conf / "fairlead.yaml"
    file.write_text(f"{setting}\nadmin: {{enabled: true}}\n")
    if name == "fairlead.keys":
        file.write_text("auth: {mode: keys}\ntenants: {a: {}}\n")
        (conf / "fairlead.secret").write_text(SECRET)
    with pytest.raises(ConfigError, match=f"{elsewhere}/{name}: paths are relative to the configuration file"):
        load_config(file)
