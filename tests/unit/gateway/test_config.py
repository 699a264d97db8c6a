"""A configuration is understood whole, or every mistake in it is told with its place."""

import inspect
import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from backends.pool import BackendSpec
from gateway.config import Config, ConfigError, load_config
from gateway.config.config import envelope_of
from gateway.config.problems import REMOVED
from gateway.config.scheduling import NAMES, PARAMETERS, PolicySettings, Scheduling
from gateway.config.value_types import PATTERNS, TENANT_PATTERN
from policies.accounts.cost import PRICES
from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from policies.prediction import PREDICTION
from policies.types import DEFAULT_TIER, SloEnvelope, Tenant, Tier


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("FAIRLEAD_CONFIG", "FAIRLEAD_LISTEN__PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def write(tmp_path):
    def write_file(text: str) -> Path:
        path = tmp_path / "fairlead.yaml"
        path.write_text(text)
        return path

    return write_file


def mistakes(path: Path | None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).splitlines()


def test_nothing_configured_is_valid_and_needs_no_file():
    config = load_config()
    assert (config.listen.host, config.listen.port, config.backends, config.auth.mode) == (
        "127.0.0.1",
        8080,
        (),
        "open",
    )


@pytest.mark.parametrize("text", ["", "# only a comment", "tenants:\n  # none yet\nqueue:\n"])
def test_a_section_of_comments_has_its_defaults(write, text):
    path = write(text)
    assert load_config(path) == Config().placed_in(path.parent)


def test_a_configuration_cannot_be_changed():
    config = load_config()
    with pytest.raises(ValidationError):
        config.listen = None
    with pytest.raises(ValidationError):
        config.queue.wait_s_max = 1


def test_every_mistake_is_told_with_its_line_and_path(write):
    path = write("""\
listen:
  prot: 80
  port: "x"
tenants:
  a: {weight: true}
  a: {weight: -1}
  7: {}
  "bad name!": {}
backends:
  - url: http://h:1/v1
  - {urll: "x"}
queeue: {}
scheduling: {fairness: vtcc, price: 3, prediction: oracle}
limits: {body_bytes_max: 16 bananas, body_timeout_s: .inf}
""")
    assert [line.removeprefix(f"{path}:") for line in mistakes(path)] == [
        "2: listen.prot: there is no such key (did you mean 'port'?)",
        "3: listen.port: must be a whole number, not text",
        "6: tenants.a: this key is there twice",
        "6: tenants.a.weight: must be at least 1e-15",
        "7: tenants.7: a name must be a string: put it in quotes",
        f"8: tenants.bad name!: a name must be {PATTERNS[TENANT_PATTERN]}",
        "10: backends[0].url: must be the server's root, without /v1",
        "11: backends[1].url: is missing",
        "11: backends[1].urll: there is no such key (did you mean 'url'?)",
        "12: queeue: there is no such key (did you mean 'queue'?)",
        f"13: scheduling.fairness: must be one of {', '.join(FAIRNESS)}",
        "13: scheduling.prediction: must be one of none, quantile, mixture, last-five, exponential",
        "13: scheduling.price: must be the name of a policy, or hold it and its parameters (policy: NAME)",
        "14: limits.body_bytes_max: must be a size in bytes, like 64MiB",
        "14: limits.body_timeout_s: must be a finite number",
    ]


def test_sections_that_do_not_agree_are_told_with_the_line_to_mend(write):
    path = write("""\
tiers: {x: {reserve_ratio: 0.5}, y: {reserve_ratio: 0.5}}
auth: {mode: keys, secret: sixteen-bytes-or-more}
tenants:
  a: {tier: gold}
backends:
  - url: http://h:1
  - url: http://h:1/
queue:
  requests_max: 10
""")
    assert [line.removeprefix(f"{path}:") for line in mistakes(path)] == [
        "1: tiers: the reserve_ratio of all tiers together must be less than 1",
        "4: tenants.a.tier: there is no tier 'gold' (tiers: default, x, y)",
        "6: backends[0].name: 'h:1' is the name of more than one backend",
        "7: backends[1].name: 'h:1' is the name of more than one backend",
        "8: queue.tenant_requests_max: must not be more than queue.requests_max",
    ]


def test_a_setting_that_is_none_any_more_is_told_with_what_holds(write):
    path = write("""\
limits:
  inputs_max: 9
pools: {chat: {scheduling: {kv_headroom_ratio: 0.9}}}
queue: {bytes_max: 1GiB}
scheduling:
  fairness: {policy: equinox, beta: 1}
continuation: {preempt: {times_max: 9}}
tracing: {sampler: always_on}
engine: {speed: 2}
""")
    text = "is no setting any more, it is always {}: remove it"
    assert sorted(line.removeprefix(f"{path}:") for line in mistakes(path)) == [
        f"2: limits.inputs_max: {text.format(2048)}",
        f"3: pools.chat.scheduling.kv_headroom_ratio: {text.format(0.95)}",
        f"4: queue.bytes_max: {text.format('1GiB')}",
        f"6: scheduling.fairness.beta: {text.format(0.3)}",
        f"7: continuation.preempt.times_max: {text.format(8)}",
        "8: tracing.sampler: is no setting any more: set the environment variable OTEL_TRACES_SAMPLER instead",
        f"9: engine.speed: {text.format('1.0')}",
    ]


def test_a_body_that_could_not_wait_is_a_mistake(write):
    (line,) = mistakes(write("limits: {body_bytes_max: 300MiB}"))
    assert "limits.body_bytes_max" in line


def test_tenants_that_no_client_can_be_are_a_mistake(write):
    assert "auth.mode" in mistakes(write("tenants: {a: {}}"))[0]
    assert load_config(write("tenants: {anonymous: {weight: 0.5}, key-0123456789ab: {weight: 2}}"))
    assert "no tenants" in mistakes(write("auth: {mode: keys, secret: sixteen-bytes-or-more}"))[0]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1\nb: 2", ":2: "),
        ("- a", ":1: "),
        ("listen: {}\n---\nlisten: {}", ":2: "),
        ("1: {}", ":1: "),
        ("a: !!python/object:os.system x", ":1: "),
        ("\x00", ": this is not YAML"),
        ("d: 2001-99-99", ": this is not YAML"),
        ("? [a]\n: 1", ":1: "),
        ("\t- x", ":1: "),
        ("tenants: &a\n  x: *a", ":2: "),
        ("a: " + "[" * 2000, ": this is not YAML"),
        pytest.param("a: " + "[" * 5000, ": this is not YAML", marks=pytest.mark.long),
    ],
)
def test_what_is_not_a_yaml_mapping_is_a_mistake_with_a_place(write, text, place):
    path = write(text)
    assert mistakes(path)[0].startswith(f"{path}{place}")


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path):
    assert "cannot be read" in mistakes(tmp_path / "none.yaml")[0]
    (tmp_path / "latin.yaml").write_bytes(b"listen: {host: \xff}")
    assert "not UTF-8" in mistakes(tmp_path / "latin.yaml")[0]


def test_the_environment_goes_before_the_file_key_by_key(write, monkeypatch):
    path = write("queue: {wait_s_max: 10, requests_max: 5000}\ntenants: {anonymous: {weight: 2, in_flight_max: 3}}")
    monkeypatch.setenv("FAIRLEAD_QUEUE__WAIT_S_MAX", "20")
    monkeypatch.setenv("FAIRLEAD_TENANTS__ANONYMOUS__WEIGHT", "5")
    monkeypatch.setenv("FAIRLEAD_BACKENDS", '[{"url": "http://a:1"}]')
    config = load_config(path)
    assert (config.queue.wait_s_max, config.queue.requests_max) == (20, 5000)
    assert (config.tenants["anonymous"].weight, config.tenants["anonymous"].in_flight_max) == (5, 3)
    assert config.backends[0].id == "a:1"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("FAIRLEAD_LISTEN__PORT", "x", "listen.port: must be a whole number"),
        ("FAIRLEAD_LISTEN__PROT", "1", "listen.prot: there is no such key"),
        ("FAIRLEAD_LISTN__PORT", "1", "there is no section 'listn' (did you mean 'listen'?)"),
        ("FAIRLEAD_NONSENSE", "1", "there is no section 'nonsense'"),
        ("FAIRLEAD_BACKENDS", "[{", "backends: must be JSON"),
        ("FAIRLEAD_BACKENDS", '[{"url": "x"}]', "backends[0].url: must be like http://host:port"),
        ("FAIRLEAD_TENANTS__A__TIER", "gold", "tenants.a.tier: there is no tier 'gold'"),
        ("FAIRLEAD_AUTH__MODE", "keys", "auth.mode: is keys, but there are no tenants"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(write, monkeypatch, name, value, text):
    monkeypatch.setenv(name, value)
    assert any(line.startswith(f"environment variable {name}: {text}") for line in mistakes(write("listen: {}")))


def test_what_kubernetes_sets_for_a_service_called_fairlead_is_no_mistake(monkeypatch):
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(f"FAIRLEAD_{name}", "tcp://10.0.0.1:8080")
    monkeypatch.setenv("FAIRLEAD_REDIS_SERVICE_HOST", "10.0.0.2")
    assert load_config() == Config()


@pytest.mark.parametrize(
    "text",
    [
        "auth: {secret: SENTINEL}",
        "backends: [{url: 'http://SENTINEL@h'}]",
        "backends: [{url: http://h, api_key: {k: SENTINEL}}]",
        "backends: [{url: http://h, api_key: SENTINEL, api_key_env: X}]",
        'backends: [{url: http://h, api_key: "SENTINEL\\nx"}]',
        "auth: {mode: SENTINEL}",
    ],
)
def test_values_are_not_repeated_because_they_may_be_secrets(write, text):
    assert "SENTINEL" not in "".join(mistakes(write(text)))


def test_secrets_do_not_show_in_what_is_printed_of_a_configuration():
    config = Config(auth={"secret": "SENTINEL-of-sixteen-bytes"}, backends=[{"url": "http://h", "api_key": "SENTINEL"}])
    assert "SENTINEL" not in repr(config)
    assert "SENTINEL" not in config.model_dump_json()
    assert "SENTINEL" not in repr(config.backend_specs())


def test_files_and_variables_that_are_named_must_be_there(write, tmp_path):
    path = write(f"""\
backends:
  - {{url: "http://a:1", api_key_file: {tmp_path}/none}}
  - {{url: "http://b:1", api_key_env: NOT_SET_ANYWHERE}}
auth:
  mode: keys
  secret_file: no-secret
  keys_file: no-keys
tenants: {{a: {{}}}}
prompt_tokens: {{ranks_file: no-ranks}}
""")
    assert [line.removeprefix(f"{path}:").split(": ")[:2] for line in mistakes(path)] == [
        ["2", "backends[0].api_key_file"],
        ["3", "backends[1].api_key_env"],
        ["6", "auth.secret_file"],
        ["7", "auth.keys_file"],
        ["9", "prompt_tokens.ranks_file"],
    ]
    assert load_config(path, check_files=False).auth.mode == "keys"


def test_a_short_secret_file_and_a_damaged_keys_file_are_mistakes(write, tmp_path):
    (tmp_path / "secret").write_text("short")
    (tmp_path / "keys").write_text("{}\n")
    lines = mistakes(write("auth: {mode: keys, secret_file: secret, keys_file: keys}\ntenants: {a: {}}"))
    assert "at least 16 bytes" in lines[0]
    assert "no valid key in line 1" in lines[1]


def test_policies_get_their_own_types():
    config = Config(
        auth={"mode": "keys"},
        tiers={"gold": {"weight": 3, "reserve_ratio": 0.2}},
        tenants={
            "a": {"tier": "gold", "weight": 2, "in_flight_max": 4, "requests_per_minute_max": 60},
            "b": {"tokens_per_minute_max": 9},
        },
        limits={"logprobs_max": 2, "output_tokens_max": 4},
    )
    assert config.policy_tiers() == [DEFAULT_TIER, Tier(id="gold", weight=3, reserve_ratio=0.2)]
    assert config.policy_tenants() == [
        Tenant(id="a", weight=2, tier_id="gold", in_flight_max=4, requests_per_minute_max=60),
        Tenant(id="b", tokens_per_minute_max=9),
    ]
    limits = config.call_limits()
    assert (limits.logprobs_max, limits.output_tokens_max) == (2, 4)


def test_envelopes_are_of_the_tiers_and_tenants_that_name_them_in_seconds():
    config = Config(
        auth={"mode": "keys"},
        tiers={"gold": {"envelope": {"ttft_ms": 500, "tpot_ms": 50}}, "batch": {}},
        tenants={"a": {"envelope": {"ttft_ms": 250}}, "b": {}},
    )
    tiers, tenants = ({name: envelope_of(each) for name, each in of.items()} for of in (config.tiers, config.tenants))
    assert tiers == {"gold": SloEnvelope(0.5, 0.05), "batch": None}
    assert tenants == {"a": SloEnvelope(ttft_s=0.25), "b": None}


@pytest.mark.parametrize("value", ["0", "-5", "0.5", ".inf", ".nan", "3600001", "true", "soon"])
@pytest.mark.parametrize("target", ["ttft_ms", "tpot_ms"])
@pytest.mark.parametrize("owner", ["tiers", "tenants"])
def test_an_impossible_envelope_is_refused_by_the_name_of_its_field(write, owner, target, value):
    (mistake,) = mistakes(
        write(f"{owner}:\n  {'gold' if owner == 'tiers' else 'key-1'}:\n    envelope: {{{target}: {value}}}\n")
    )
    assert f"envelope.{target}: must be" in mistake


def test_a_tier_says_what_becomes_of_it_when_time_is_short():
    config = Config(tiers={"gold": {"on_miss": "reject", "priority": 4}, "bulk": {"priority": -2, "preemptible": True}})
    _, gold, bulk = config.policy_tiers()
    assert gold == Tier("gold", rejects_misses=True, priority=4)
    assert bulk == Tier("bulk", priority=-2, preemptible=True)
    assert (gold.is_sheddable, bulk.is_sheddable) == (False, True)


def test_a_path_is_listed_once_and_is_a_path(write):
    path = write("""\
endpoints:
  /v1/systemone: generation
  /server_info: unit
  /v1/chat/completions: unit
  /v1/responses/resp_1: unit
  /a/../b: unit
  v1/x: unit
  /x?y: unit
  /y: free
""")
    lines = [line.removeprefix(f"{path}:") for line in mistakes(path)]
    assert [line.split(":", 1)[0] for line in lines] == ["4", "5", "6", "7", "8", "9"]
    assert "is served already" in lines[0]
    assert "must be a path" in lines[2]
    assert "must be one of" in lines[5] or "generation" in lines[5]


def test_a_proxys_networks_are_networks(write):
    lines = mistakes(write("auth: {trusted_proxies: [10.0.0.0/8, 10.0.0.1/8, nowhere]}"))
    assert len(lines) >= 2
    assert all("auth.trusted_proxies" in line for line in lines)


def test_who_is_named_by_a_proxy_or_is_a_model_may_be_configured_in_open_mode():
    for auth in ({"trusted_proxies": ["10.0.0.0/8"]}, {"tenant_from": "model"}):
        assert Config(auth=auth, tenants={"meta-llama/Llama-3.1-8B": {"weight": 2}}).tenants
    with pytest.raises(ValidationError):
        Config(tenants={"meta-llama/Llama-3.1-8B": {"weight": 2}})


def test_the_default_tier_can_be_configured():
    assert Config(tiers={"default": {"weight": 2}}).policy_tiers() == [Tier(id="default", weight=2)]


def test_backends_get_their_credentials_from_file_variable_or_value(tmp_path, monkeypatch):
    (tmp_path / "key").write_text("from-file\n")
    monkeypatch.setenv("BACKEND_KEY", "from-variable")
    config = Config(
        backends=[
            {"url": "http://a:1/", "api_key_file": tmp_path / "key", "kv_tokens_max": 5, "pool": "p"},
            {"url": "http://b:1", "api_key_env": "BACKEND_KEY", "name": "bee"},
            {"url": "http://c:1", "api_key": "from-value", "requests_running_max": 6},
            {"url": "https://d/base"},
        ]
    )
    specs = config.backend_specs()
    assert specs == [
        BackendSpec("a:1", "http://a:1", {"authorization": "Bearer from-file"}, pool="p", kv_tokens_max=5),
        BackendSpec("bee", "http://b:1", {"authorization": "Bearer from-variable"}),
        BackendSpec("c:1", "http://c:1", {"authorization": "Bearer from-value"}, requests_running_max=6),
        BackendSpec("d", "https://d/base"),
    ]


def scheduling(**given) -> Scheduling:
    return Config(scheduling=given).scheduling


def test_a_policy_is_chosen_by_its_name_or_with_parameters():
    assert scheduling(fairness="drr") == scheduling(fairness={"policy": "drr", "quantum_service": 500})
    assert scheduling(fairness={"policy": "drr", "quantum_service": 7}).fairness.parameters() == {"quantum_service": 7}
    assert scheduling(prediction={"quantile": 0.5}).prediction.policy == "quantile", "the default keeps its name"


@pytest.mark.parametrize("name", ["fairness", "prediction", "placement", "price"])
def test_an_unknown_policy_is_answered_with_those_there_are(write, name):
    (line,) = mistakes(write(f"scheduling:\n  {name}: {{policy: nonsense}}"))
    there_are = ", ".join(NAMES[name])
    assert line.endswith(f":2: scheduling.{name}: must be one of {there_are}")


def test_an_unknown_parameter_is_answered_with_those_there_are_and_all_mistakes_at_once(write):
    path = write("""\
scheduling:
  fairness: {policy: vtc, quantum_service: 5}
  prediction:
    policy: quantile
    quantiel: 0.5
    quantile: 0
  price: {policy: flops, layers: many}
""")
    assert [line.removeprefix(f"{path}:") for line in mistakes(path)] == [
        "2: scheduling.fairness.quantum_service: 'vtc' has no such parameter (it has none)",
        "5: scheduling.prediction.quantiel: 'quantile' has no such parameter (it has: quantile)",
        "6: scheduling.prediction.quantile: must be more than 0",
        "7: scheduling.price.layers: must be a whole number, not text",
    ]


def test_a_policy_comes_from_the_environment_by_name_or_key_by_key(write, monkeypatch):
    monkeypatch.setenv("FAIRLEAD_SCHEDULING__FAIRNESS", "drr")
    monkeypatch.setenv("FAIRLEAD_SCHEDULING__PREDICTION__QUANTILE", "0.7")
    config = load_config(write("scheduling: {fairness: fifo, prediction: {policy: quantile, quantile: 0.9}}"))
    assert config.scheduling.fairness.policy == "drr"
    assert config.scheduling.prediction.parameters() == {"quantile": 0.7}


def test_a_pool_is_scheduled_as_all_are_but_for_what_is_set_for_it(write):
    config = load_config(
        write("""\
scheduling: {fairness: lcf, share_ratio_max: 0.25, price: {output: 3}}
pools:
  meta-llama/Llama-3.1-8B:
    scheduling: {fairness: fifo, price: extend}
""")
    )
    own = config.scheduling_of("meta-llama/Llama-3.1-8B")
    assert (own.fairness.policy, own.price.policy, own.share_ratio_max) == ("fifo", "extend", 0.25)
    assert config.scheduling_of("another") == config.scheduling


def test_an_infinite_slack_may_be_configured(write):
    config = load_config(write("scheduling:\n  fairness: {policy: slack, slack_service: .inf, second_key: deadline}"))
    assert config.scheduling.fairness.parameters() == {"slack_service": math.inf, "second_key": "deadline"}


@pytest.mark.interpreted
def test_parameters_have_the_defaults_of_the_policies_themselves():
    tables = {"fairness": FAIRNESS, "prediction": PREDICTION, "placement": PLACEMENT, "price": PRICES}
    for kind, table in tables.items():
        for name, make in table.items():
            given = inspect.signature(make).parameters
            defaults = {key: given[key].default for key in given if key not in ("rng", "args", "kwargs")}
            taken = {key: default for key, default in defaults.items() if (name, key) not in REMOVED}
            assert {key: float(REMOVED[name, key]) for key in defaults if key not in taken} == {
                key: default for key, default in defaults.items() if key not in taken
            }
            assert PARAMETERS[kind].get(name, PolicySettings)(policy=name).parameters() == taken, (kind, name)
        assert PARAMETERS[kind].keys() <= table.keys()


def test_an_unknown_batching_of_the_embedded_engine_is_answered_with_those_there_are(write):
    (line,) = mistakes(write("engine:\n  batching: nonsense"))
    assert line.endswith(":2: engine.batching: must be one of chunked-prefill, sarathi, separate-prefill, fair")
