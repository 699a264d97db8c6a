"""`check-config` finds what `serve` refuses, all of it at once, in words that a person understands."""

import json

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli import app
from gateway.config.schema import config_schema

CHECKED = {
    "a certificate that is not there": ({"backends": [{"url": "https://a:1", "ca_file": "nix.pem"}]}, "ca_file"),
    "a certificate of Redis": (
        {"state": {"redis": {"url": "rediss://r:1", "ca_file": "nix.pem"}}}, "state.redis.ca_file",
    ),
    "a certificate of an issuer": (
        {
            "auth": {"mode": "keys", "secret": "s" * 32, "keys_file": "/dev/null"}, "tenants": {"a": {}},
            "jwt": {"data": [{"issuer": "https://i", "audience": "a", "ca_file": "nix.pem"}]},
        },
        "jwt.data[0].ca_file",
    ),
    "two ports that are one": (
        {"listen": {"port": 8081}, "admin": {"enabled": True, "port": 8081}}, "admin.port: is listen.port, too",
    ),
    "a port at every address and at one": (
        {"listen": {"host": "0.0.0.0", "port": 8081}, "admin": {"enabled": True}}, "admin.port: is listen.port, too",
    ),
    "a port of the metrics that is the clients'": (
        {"metrics": {"port": 8080}}, "metrics.port: is listen.port, too",
    ),
    "a port of the metrics that is the admin's, at every address": (
        {"admin": {"enabled": True}, "metrics": {"host": "0.0.0.0", "port": 8081}}, "metrics.port: is admin.port, too",
    ),
    "a host of the metrics": ({"metrics": {"host": "not a host", "port": 9090}}, "metrics.host: is no address"),
    "a host that is none": ({"listen": {"host": "not a host"}}, "listen.host: is no address"),
    "a host of the admin port": ({"admin": {"enabled": True, "host": "not a host"}}, "admin.host: is no address"),
    "a folder that is not there": ({"access_log": {"path": "nix/access.log"}}, "access_log.path: there is no folder"),
    "a folder of the state": ({"state": {"file": "nix/state.db"}}, "state.file: there is no folder"),
    "a certificate of the port": (
        {"listen": {"tls": {"cert_file": "nix.pem", "key_file": "nix.key"}}}, "listen.tls: there is no file",
    ),
    "a certificate of the admin port": (
        {"admin": {"enabled": True, "tls": {"cert_file": "nix.pem", "key_file": "nix.key"}}}, "admin.tls: there is no",
    ),
    "a network that is none": (
        {"auth": {"trusted_proxies": ["10.0.0.0/33"]}}, "auth.trusted_proxies[0]: must be a network like 10.0.0.0/8",
    ),
    "a network with bits behind its prefix": (
        {"admin": {"backend_networks": ["10.0.0.1/8"]}}, "admin.backend_networks[0]: must be a network like",
    ),
}  # fmt: skip


def check(tmp_path, text):
    file = tmp_path / "fairlead.yaml"
    file.write_text(text)
    return CliRunner().invoke(app, ["check-config", str(file)])


@pytest.mark.parametrize("name", CHECKED)
def test_what_serve_would_refuse_is_found(tmp_path, name):
    config, text = CHECKED[name]
    checked = check(tmp_path, yaml.safe_dump(config))
    assert checked.exit_code == 1
    assert text in checked.output
    assert len(checked.output.splitlines()) == 1, "one problem is one line"
    served = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "fairlead.yaml")])
    assert served.exit_code == 1
    assert text in served.output


@pytest.mark.parametrize("ports", [{"port": 0}, {"port": 9000}, {"port": 8081, "host": "127.0.0.2"}])
def test_ports_of_different_addresses_and_free_ones_are_no_problem(tmp_path, ports):
    assert check(tmp_path, yaml.safe_dump({"listen": ports, "admin": {"enabled": True}})).exit_code == 0


def test_an_extra_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.config.load.find_spec", lambda _: None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    text = "discovery: [{kubernetes: app=vllm}]\ntracing: {endpoint: 'http://c:4317'}\n"
    output = check(tmp_path, text).output
    assert (
        "discovery[0].kubernetes: needs a package that is not installed: pip install 'fairlead[kubernetes]'" in output
    )
    assert "tracing: needs a package that is not installed: pip install 'fairlead[otlp-grpc]'" in output


DOUBTED = {
    "a cost of a tenant that nothing has": ({"tenants": {"anonymous": {"cost_per_month_max": 9}}},
        "tenants.anonymous.cost_per_month_max: limits nothing"),
    "a cost of a group": ({"groups": {"g": {"cost_per_day_max": 9}}}, "groups.g.cost_per_day_max: limits nothing"),
    "a split with a model that is no fallback": (
        {"aliases": {"chat": {"models": ["llama-70b"], "split": {"llama-70b": 9, "lama-70b": 1}}}},
        "aliases.chat.split.lama-70b: is none of the alias's models (did you mean 'llama-70b'?)"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTED)
def test_what_is_valid_and_probably_not_meant_is_a_warning(tmp_path, name):
    settings, text = DOUBTED[name]
    result = check(tmp_path, yaml.safe_dump(settings))
    assert result.exit_code == 0
    assert f"warning: {text}" in result.stderr


def test_a_cost_with_a_price_list_and_a_split_over_the_models_are_no_warning(tmp_path):
    settings = {
        "prices": {"m": {"currency": "EUR", "periods": [{"prompt": 1, "output": 2}]}},
        "tenants": {"anonymous": {"cost_per_month_max": 9}},
        "aliases": {"chat": {"models": ["a", "b"], "split": {"a": 9, "b": 1}}},
    }
    assert "warning" not in check(tmp_path, yaml.safe_dump(settings)).output


def test_disagreements_are_told_although_fields_are_wrong(tmp_path):
    text = """
listen: {port: 99999}
auth: {mode: keys, secret: 0123456789abcdef0123456789abcdef}
tenants:
  a: {tier: nowhere}
  b: {weight: -1}
queue: {tenant_requests_max: 9, requests_max: 8}
"""
    output = check(tmp_path, text).output
    for path in ("listen.port", "tenants.a.tier", "tenants.b.weight", "queue.tenant_requests_max"):
        assert f": {path}: " in output, path
    assert len(output.splitlines()) == 4


def test_a_wrong_field_is_not_told_again_as_what_its_absence_brings(tmp_path):
    text = "auth: {mode: keys}\ntiers: {gold: {weight: -1}}\ntenants: {a: {tier: gold}}\nbackends: [{name: b0}]\n"
    assert [line.split(": ")[1] for line in check(tmp_path, text).output.splitlines()] == [
        "tiers.gold.weight",
        "backends[0].url",
    ]


@pytest.mark.parametrize("name", ["no", "1", "null", "2026-01-01"])
def test_a_name_that_is_no_string_in_yaml_is_called_what_it_is_called(tmp_path, name):
    output = check(
        tmp_path, f"auth: {{mode: keys, secret: {'s' * 32}, keys_file: /dev/null}}\ntenants:\n  {name}: {{}}\n"
    ).output
    assert f"tenants.{name}: a name must be a string: put it in quotes" in output
    assert len(output.splitlines()) == 1


def test_the_schema_takes_the_example_and_refuses_what_there_is_not():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    example = yaml.safe_load(CliRunner().invoke(app, ["example-config"]).output)
    assert list(validator.iter_errors(example)) == []
    for wrong in (
        {"lisen": {}},
        {"listen": {"port": "x"}},
        {"listen": {"port": 70_000}},
        {"admin": {"port": -1}},
        {"limits": {"body_bytes_max": 0}},
        {"backends": [{}]},
        {"backends": [{"url": "u", "kind": "x"}]},
    ):
        assert list(validator.iter_errors(wrong)), wrong
    printed = CliRunner().invoke(app, ["config-schema"])
    assert json.loads(printed.output) == schema
