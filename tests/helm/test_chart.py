"""The chart, rendered as helm renders it: what comes out is valid, safe and what the gateway itself accepts."""

import functools
import json
from collections.abc import Callable, Iterable
from unittest import mock

import kubernetes_validate
import pytest
import yaml
from renderings import CHART, EVERYTHING, FOUND, MATRIX, PAIRS, SHARED, helm, render, render_all

from gateway.api.endpoints import LIVEZ, READYZ
from gateway.config import Config

URL = "redis://redis:6379/1"
VERSIONS = tuple(f"1.{minor}.0" for minor in range(27, 38))
NO_SCHEMA = {"HTTPRoute", "ServiceMonitor", "PodMonitor", "PrometheusRule"}  # resources of others

read_schema = functools.cache(kubernetes_validate.utils.schema_contents)
REFUSED = {
    "a misspelt key": {"replicas": 2},
    "a misspelt key below": {"image": {"repo": "x"}},
    "a misspelt section of the configuration": {"config": {"tenant": {"alice": {}}}},
    "a misspelt setting of the gateway": {"config": {"auth": {"mod": "keys"}}},
    "a misspelt setting of a tenant": {"config": {"tenants": {"alice": {"wieght": 2}}}},
    "a policy that there is not": {"config": {"scheduling": {"fairness": {"policy": "fair"}}}},
    "a port of the gateway out of range": {"config": {"admin": {"port": 70_000}}},
    "a probe that there is not": {"probes": {"ready": {}}},
    "a digest that is none": {"image": {"digest": "sha256:0a"}},
    "a strategy that there is not": {"strategy": {"type": "Canary"}},
    "a monitor of something else": {"monitoring": {"prometheus": {"kind": "Probe"}}},
    "one host where hosts are": {"ingress": {"host": "llm.example.com"}},
    "a label that is a number": {"commonLabels": {"a": 1}},
    "a port out of range": {"service": {"port": 70_000}},
    "a type that services have not": {"service": {"type": "Cluster"}},
    "text for a number": {"replicaCount": "two"},
    "a pull policy that does not exist": {"image": {"pullPolicy": "Sometimes"}},
    "a backend without an address": {"config": {"backends": [{"name": "x"}]}},
    "an address that is none": {"config": {"backends": [{"url": "vllm:8000"}]}},
    "a time below zero": {"config": {"shutdown": {"drain_s": -1}}},
    "a route from nowhere": {"httpRoute": {"enabled": True}},
    "a timeout that is none": {"httpRoute": {**EVERYTHING["httpRoute"], "timeouts": {"request": "soon"}}},
    "a size that is none": {"persistence": {"size": "big"}},
    "a part that is none": {"pdb": {"minAvailable": "half"}},
}


def every_rendering(rule: Callable[[str], None], among: Iterable[str] = MATRIX) -> Callable[[], None]:
    """A rule as one test, which names every rendering that breaks it. Such tests follow one another, since a process
    renders each once.
    """

    def test() -> None:
        broken = {}
        for name in among:
            try:
                rule(name)
            except Exception as error:  # noqa: BLE001 - said below, with that of the others
                broken[name] = f"{type(error).__name__}: {error}"
        assert broken == {}

    test.__doc__ = rule.__doc__
    return test


def all_rendered(name):
    """What the values of this name render; not to be changed."""
    return render_all(MATRIX[name])


@functools.cache
def validate(document, version):
    """Raises what is wrong with it. Most documents are the same in most renderings, and most schemas, too."""
    with mock.patch.object(kubernetes_validate.utils, "schema_contents", read_schema):
        kubernetes_validate.validate(json.loads(document), version, strict=True)


def one(documents, kind):
    (document,) = [
        document
        for (each, name), document in documents.items()
        if each == kind and not name.endswith(("-admin", "-dashboards"))
    ]
    return document


def pod_of(documents):
    return one(documents, "Deployment")["spec"]["template"]


def check_schemas(name, versions):
    for (kind, _), document in all_rendered(name):
        for version in versions if kind not in NO_SCHEMA else ():
            validate(json.dumps(document), version)


@every_rendering
def test_what_is_rendered_is_valid_for_the_oldest_and_the_newest_kubernetes(name):
    """What an API has lost is missing in the newest, and what it has gained in the oldest."""
    check_schemas(name, (VERSIONS[0], VERSIONS[-1]))


@pytest.mark.long
@every_rendering
def test_what_is_rendered_is_valid_for_every_kubernetes_between(name):
    check_schemas(name, VERSIONS[1:-1])


@every_rendering
def test_services_and_all_else_select_the_pods_and_nothing_else(name):
    documents = dict(all_rendered(name))
    labels = pod_of(documents)["metadata"]["labels"]
    selectors = [document["spec"]["selector"] for (kind, _), document in documents.items() if kind == "Service"]
    selectors += [
        document["spec"][where]["matchLabels"]
        for (kind, _), document in documents.items()
        for where in ("selector", "podSelector")
        if kind not in ("Service", "ServiceMonitor") and "matchLabels" in document.get("spec", {}).get(where, {})
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    test_labels = one(documents, "Pod")["metadata"]["labels"]
    assert not any(selector.items() <= test_labels.items() for selector in selectors)


@every_rendering
def test_what_refers_to_another_refers_to_one_that_is_there(name):
    documents = dict(all_rendered(name))
    spec = pod_of(documents)["spec"]
    services = {name: document for (kind, name), document in documents.items() if kind == "Service"}
    service = next(
        document for name, document in services.items() if not name.endswith(("-admin", "-metrics", "-cluster"))
    )
    maps = {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
    assert maps <= {name for kind, name in documents if kind == "ConfigMap"}
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} == volumes
    ports = {port["name"] for port in spec["containers"][0]["ports"]}
    assert {port["targetPort"] for each in services.values() for port in each["spec"]["ports"]} == ports
    claims = {v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v}
    assert claims <= {"mine"} | {name for kind, name in documents if kind == "PersistentVolumeClaim"}
    for kind, backend in (("Ingress", "http"), ("HTTPRoute", "rules")):
        for (each, _), document in documents.items():
            if each == kind:
                assert service["metadata"]["name"] in str(document["spec"]), backend


@every_rendering
def test_the_gateway_accepts_the_configuration_and_serves_where_the_service_looks(name):
    documents = dict(all_rendered(name))
    config = Config(**yaml.safe_load(one(documents, "ConfigMap")["data"]["fairlead.yaml"]))
    listens = {"http": (config.listen.host, config.listen.port)}
    if config.admin.enabled:
        listens["admin"] = (config.admin.host, config.admin.port)
    if config.metrics.port is not None:
        listens["metrics"] = (config.metrics.host, config.metrics.port)
    if config.is_clustered:
        listens["cluster"] = (config.cluster.host, config.cluster.port)
    ports = pod_of(documents)["spec"]["containers"][0]["ports"]
    assert listens == {port["name"]: ("0.0.0.0", port["containerPort"]) for port in ports}


@every_rendering
def test_every_file_of_the_gateway_is_in_a_volume_and_what_it_writes_in_one_that_it_may_write(name):
    documents = dict(all_rendered(name))
    config = Config(**yaml.safe_load(one(documents, "ConfigMap")["data"]["fairlead.yaml"]))
    mounts = pod_of(documents)["spec"]["containers"][0]["volumeMounts"]
    may_write = {mount["mountPath"]: not mount.get("readOnly") for mount in mounts}
    assert may_write[str(config.auth.secret_file.parent)] is not bool(MATRIX[name].get("keys"))
    if config.admin.enabled:
        assert str(config.admin.key_file.parent) in may_write
    assert may_write[str(config.state.file.parent)]
    if config.state.redis is not None:
        assert str(config.state.redis.password_file.parent) in may_write
    tls = config.cluster.tls
    for file in (config.cluster.secret_file, *((tls.cert_file, tls.key_file, tls.ca_file) if tls else ())):
        assert file is None or may_write[str(file.parent)] is False


@every_rendering
def test_pods_are_given_time_to_end_what_they_are_in_the_middle_of(name):
    documents = dict(all_rendered(name))
    config = Config(**yaml.safe_load(one(documents, "ConfigMap")["data"]["fairlead.yaml"]))
    grace_s = pod_of(documents)["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= config.shutdown.lame_duck_s + config.shutdown.drain_s + 5


@every_rendering
def test_probes_ask_what_the_gateway_answers_and_see_a_lame_duck_before_it_is_gone(name):
    documents = dict(all_rendered(name))
    config = Config(**yaml.safe_load(one(documents, "ConfigMap")["data"]["fairlead.yaml"]))
    container = pod_of(documents)["spec"]["containers"][0]
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    asked = {kind: (probe["httpGet"]["path"], probe["httpGet"]["port"]) for kind, probe in probes.items()}
    live, ready = (LIVEZ.path, "http"), (READYZ.path, "http")
    assert asked == {"startup": live, "liveness": live, "readiness": ready}
    readiness = probes["readiness"]
    seen_s = readiness["periodSeconds"] * readiness["failureThreshold"] + readiness["timeoutSeconds"]
    assert config.shutdown.lame_duck_s < 5 or seen_s < config.shutdown.lame_duck_s


@every_rendering
def test_nothing_runs_as_root_or_may_write_to_its_image(name):
    documents = dict(all_rendered(name))
    for spec in (pod_of(documents)["spec"], one(documents, "Pod")["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        finds = any("kubernetes" in each for each in MATRIX[name].get("config", {}).get("discovery", ()))
        assert spec["automountServiceAccountToken"] is (finds and spec is not one(documents, "Pod")["spec"])
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


@every_rendering
def test_every_port_names_its_protocol(name):
    def ports(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "ports":
                    yield from value
                yield from ports(value)
        elif isinstance(node, list):
            for value in node:
                yield from ports(value)

    assert all("protocol" in port for port in ports(list(dict(all_rendered(name)).values())))


def check_lint(name):
    messages = helm().lint(CHART, MATRIX[name], strict=True)["messages"]
    assert [each for each in messages or [] if each["severity"] > 1] == []


test_strict_lint_has_nothing_to_say = every_rendering(check_lint, [name for name in MATRIX if name not in PAIRS])
test_strict_lint_has_nothing_to_say_of_two_switches = pytest.mark.long(every_rendering(check_lint, PAIRS))


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_mean_nothing_are_refused(name):
    with helm().Chart.load(CHART) as chart, pytest.raises(helm().HelmError):
        chart.validate_schema(REFUSED[name])


def test_only_a_gateway_that_looks_for_backends_in_the_cluster_may_read_where_they_are():
    documents = render(FOUND)
    assert pod_of(documents)["spec"]["automountServiceAccountToken"] is True
    roles = [document for (kind, _), document in render_all(FOUND) if kind == "Role"]
    names = {(role["metadata"]["namespace"], role["metadata"]["name"]) for role in roles}
    assert names == {("llm", "release-fairlead"), ("models", "llm-release-fairlead")}
    (rule,) = roles[0]["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    }
    assert not any(kind in {"Role", "RoleBinding"} for kind, _ in render({}))
    elsewhere = {"config": {"discovery": [{"kubernetes": "app=vllm", "namespace": "models"}, {"dns": "vllm"}]}}
    assert one(render(elsewhere), "Role")["metadata"]["namespace"] == "models"


def test_a_route_lets_answers_take_their_time_unless_its_gateway_cannot_say_so():
    (rule,) = one(render(EVERYTHING), "HTTPRoute")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    (rule,) = one(render(MATRIX["a route without timeouts"]), "HTTPRoute")["spec"]["rules"]
    assert "timeouts" not in rule


@pytest.mark.parametrize(
    ("name", "service"), [("everything", "gate-admin"), ("a port for metrics", "release-fairlead-metrics")]
)
def test_the_monitor_finds_the_service_that_has_the_metrics_and_nothing_else(name, service):
    documents = dict(all_rendered(name))
    wanted = one(documents, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    found = [
        name
        for (kind, name), document in documents.items()
        if kind == "Service" and wanted.items() <= document["metadata"]["labels"].items()
    ]
    assert found == [service]
    (endpoint,) = one(documents, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in documents["Service", service]["spec"]["ports"]}


def test_rules_and_dashboards_are_the_files_of_the_chart():
    documents = render(EVERYTHING)
    assert one(documents, "PrometheusRule")["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    dashboards = documents["ConfigMap", "gate-dashboards"]["data"]
    files = {file.name: json.loads(file.read_text()) for file in CHART.glob("files/dashboards/*.json")}
    assert {name: json.loads(text) for name, text in dashboards.items()} == files


def test_keys_come_from_a_secret_and_only_then_from_files():
    config = yaml.safe_load(one(render(EVERYTHING), "ConfigMap")["data"]["fairlead.yaml"])
    assert config["auth"] == {
        "mode": "keys",
        "keys_file": "/etc/fairlead-keys/fairlead.keys",
        "secret_file": "/etc/fairlead-keys/fairlead.secret",
    }
    assert "keys_file" not in one(render({}), "ConfigMap")["data"]["fairlead.yaml"]


@pytest.mark.parametrize("has_admin", [True, False])
@pytest.mark.parametrize(
    "values", [{"redis": {"url": URL}}, {"config": {"state": {"redis": {"url": URL, "prefix": "x"}}}}]
)
def test_state_is_shared_and_kept_with_the_admin_port_and_without(values, has_admin):
    secrets = {**SHARED, "redis": {**values.get("redis", {}), "existingSecret": "redis"}}
    documents = render({**values, **secrets, "admin": {"enabled": has_admin}})
    state = yaml.safe_load(one(documents, "ConfigMap")["data"]["fairlead.yaml"])["state"]
    assert state["file"] == "/var/lib/fairlead/fairlead.db"
    asked = {"url": URL, "password_file": "/etc/fairlead-redis/redis-password"}
    assert state["redis"] == {**values.get("config", {}).get("state", {}).get("redis", {}), **asked}


def test_another_configuration_is_another_pod():
    checksums = {
        pod_of(render({"config": {"queue": {"wait_s_max": seconds}}}))["metadata"]["annotations"]["checksum/config"]
        for seconds in (10, 20)
    }
    assert len(checksums) == 2


def test_what_scales_is_not_given_a_number_of_replicas():
    assert "replicas" not in one(render({"autoscaling": {"enabled": True}}), "Deployment")["spec"]
    assert one(render({"replicaCount": 0}), "Deployment")["spec"]["replicas"] == 0


def test_the_defaults_fit_on_two_screens():
    assert len((CHART / "values.yaml").read_text().splitlines()) < 200


def test_names_are_those_of_the_release_and_short_enough():
    assert ("Service", "release-fairlead") in render({})
    assert ("Service", "my-fairlead") in render({}, name="my-fairlead")
    assert all(len(name) <= 63 for _, name in render({}, name="r" * 53) if not name.endswith(("-answers",)))
