"""What a platform team adds to every chart: registries, labels, probes, hosts, sidecars, more objects, networks."""

import base64
import re

import pytest
from renderings import EVERYTHING, HOSTS, MATRIX, PEER, render, render_all

DIGEST = EVERYTHING["image"]["digest"]
PROMETHEUS = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
OTHER = {"ipBlock": {"cidr": "10.0.0.0/8"}}


def of_kind(values, kind):
    return [document for (each, _), document in render_all(values) if each == kind]


def pod(values):
    (deployment,) = of_kind(values, "Deployment")
    return deployment["spec"]["template"]


def gateway(values):
    return pod(values)["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, r"fairlead:\d+\.\d+\.\d+"),
        ({"image": {"tag": "1"}}, r"fairlead:1"),
        ({"image": {"digest": DIGEST, "tag": "1"}}, rf"fairlead@{DIGEST}"),
        ({"image": {"registry": "a.example.com", "tag": "1"}}, r"a\.example\.com/fairlead:1"),
        (
            {"image": {"registry": "a.example.com", "tag": "1"}, "global": {"imageRegistry": "b.example.com"}},
            r"b\.example\.com/fairlead:1",
        ),
        ({"global": None, "image": {"tag": "1"}}, r"fairlead:1"),
        (EVERYTHING, rf"mirror\.example\.com/fairlead@{DIGEST}"),
    ],
)
def test_an_image_is_named_by_registry_tag_or_digest_for_the_test_of_the_release_too(values, image):
    (test,) = of_kind(values, "Pod")
    assert re.fullmatch(image, gateway(values)["image"])
    assert test["spec"]["containers"][0]["image"] == gateway(values)["image"]


def test_common_labels_and_annotations_are_on_every_object_and_select_nothing():
    for (kind, name), document in render_all(EVERYTHING):
        if (kind, name) in {("Secret", "mine"), ("Secret", "release-text")}:
            continue  # as they were given
        labels, annotations = document["metadata"]["labels"], document["metadata"]["annotations"]
        assert (labels["cost-centre"], annotations["owner"]) == ("42", "llm"), kind
        assert labels["app.kubernetes.io/name"] in {"fairlead", "fairlead-test"}, kind
        assert "cost-centre" not in str(document.get("spec", {}).get("selector")), kind
    template = pod(EVERYTHING)["metadata"]
    assert template["labels"]["cost-centre"] == "42"
    assert template["labels"]["team"] == "llm"
    assert template["annotations"]["owner"] == "llm"


def test_what_an_object_is_given_of_its_own_goes_before_what_is_common():
    values = {
        "commonLabels": {"a": "common", "b": "common"},
        "commonAnnotations": {"a": "common", "b": "common"},
        "podLabels": {"a": "own", "app.kubernetes.io/name": "never"},
        "podAnnotations": {"a": "own"},
        "deploymentAnnotations": {"a": "deployment"},
    }
    template = pod(values)["metadata"]
    assert (template["labels"]["a"], template["labels"]["b"]) == ("own", "common")
    assert template["labels"]["app.kubernetes.io/name"] == "fairlead"
    assert (template["annotations"]["a"], template["annotations"]["b"]) == ("own", "common")
    (deployment,) = of_kind(values, "Deployment")
    assert deployment["metadata"]["annotations"] == {"a": "deployment", "b": "common"}


def test_single_fields_of_probes_change_and_a_probe_may_ask_otherwise_or_be_left_out():
    container = gateway(EVERYTHING)
    assert container["livenessProbe"]["periodSeconds"] == 30
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    probe = gateway({"probes": {"readiness": {"httpGet": None, "tcpSocket": {"port": "http"}}}})["readinessProbe"]
    assert (probe["tcpSocket"], probe["periodSeconds"]) == ({"port": "http"}, 2)
    assert "httpGet" not in probe
    assert "startupProbe" not in gateway({"probes": {"startup": None}})


def test_hooks_of_the_container_are_those_that_were_given():
    assert gateway(EVERYTHING)["lifecycle"] == EVERYTHING["lifecycle"]
    assert "lifecycle" not in gateway({})


def test_the_gateway_is_scaled_by_what_more_of_it_helps_against():
    (scaler,) = of_kind(EVERYTHING, "HorizontalPodAutoscaler")
    custom, resource = scaler["spec"]["metrics"]
    assert custom["pods"]["metric"]["name"] == "fairlead_event_loop_lag_seconds_p99"
    assert custom["pods"]["target"] == {"type": "AverageValue", "averageValue": "50m"}
    assert resource["resource"]["name"] == "cpu"


def test_autoscaling_behaves_as_it_is_told_to():
    (scaler,) = of_kind(EVERYTHING, "HorizontalPodAutoscaler")
    assert scaler["spec"]["behavior"] == EVERYTHING["autoscaling"]["behavior"]


def test_every_host_leads_to_the_gateway():
    (ingress,) = of_kind(EVERYTHING, "Ingress")
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == HOSTS
    (path,) = {str(rule["http"]["paths"]) for rule in ingress["spec"]["rules"]}
    assert "'name': 'gate'" in path
    (route,) = of_kind(EVERYTHING, "HTTPRoute")
    assert route["spec"]["hostnames"] == HOSTS
    (rule,) = of_kind({"ingress": {"enabled": True}}, "Ingress")[0]["spec"]["rules"]
    assert "host" not in rule


def test_pods_are_replaced_as_it_was_said_and_one_after_the_other_where_they_have_a_volume():
    def strategy(values):
        return of_kind(values, "Deployment")[0]["spec"]["strategy"]

    assert strategy({})["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert strategy(EVERYTHING) == EVERYTHING["strategy"]
    assert strategy({"strategy": {"type": "Recreate"}}) == {"type": "Recreate"}
    assert strategy({"persistence": {"enabled": True}}) == {"type": "Recreate"}


def test_containers_run_before_and_beside_the_gateway():
    spec = pod(EVERYTHING)["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["first"]
    assert [each["name"] for each in spec["containers"]] == ["fairlead", "beside"]
    assert "initContainers" not in pod({})["spec"]


def test_more_objects_are_made_with_the_templates_in_them_filled_in():
    documents = render(EVERYTHING)
    assert documents["Secret", "mine"]["data"] == {"of": base64.b64encode(b"release").decode()}
    assert ("Secret", "release-text") in documents


def test_a_monitor_of_pods_finds_the_pods_and_their_port():
    values = {"monitoring": {"prometheus": {**EVERYTHING["monitoring"]["prometheus"], "kind": "PodMonitor"}}}
    (monitor,) = of_kind(values, "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod(values)["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in gateway(values)["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "metrics", "key": "metrics-key"}
    assert not of_kind(values, "ServiceMonitor")


def test_a_port_for_metrics_alone_is_scraped_without_a_key():
    values = MATRIX["a port for metrics alone"]
    (endpoint,) = of_kind(values, "PodMonitor")[0]["spec"]["podMetricsEndpoints"]
    assert endpoint == {"port": "metrics", "path": "/metrics", "interval": "15s"}
    assert [port["name"] for port in gateway(values)["ports"]] == ["http", "metrics"]


def allowed(*, metrics=False, **policy):
    """Which peers are let in, by port: None for all."""
    values = {"metrics": {"enabled": metrics}, "networkPolicy": {"enabled": True, **policy}}
    (document,) = of_kind(values, "NetworkPolicy")
    rules = document["spec"]["ingress"]
    assert all(rule.get("from", [PEER]) for rule in rules), "an empty list admits all"
    return {port["port"]: rule.get("from") for rule in rules for port in rule["ports"]}


def test_the_network_lets_prometheus_to_the_metrics_and_no_other_peer_to_the_admin_port():
    assert allowed() == {"http": None, "admin": [PROMETHEUS]}
    assert allowed(metricsFrom=[OTHER]) == {"http": None, "admin": [OTHER]}
    assert allowed(metricsFrom=[]) == {"http": None}
    assert allowed(metricsFrom=[], adminFrom=[PEER]) == {"http": None, "admin": [PEER]}
    assert allowed(**{"from": [OTHER], "adminFrom": [PEER]}) == {"http": [OTHER], "admin": [PEER, PROMETHEUS]}
    assert allowed(metrics=True) == {"http": None, "metrics": [PROMETHEUS]}
    assert allowed(metrics=True, adminFrom=[PEER]) == {"http": None, "metrics": [PROMETHEUS], "admin": [PEER]}
