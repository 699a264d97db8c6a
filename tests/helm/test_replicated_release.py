"""Replicas with Redis keep one order: the chart lets them meet at the cluster port, and lets nothing else in there."""

import pytest
import yaml
from renderings import CHART, MATRIX, PEER, PRODUCTION, SHARED, render

from gateway.config import Config

NAME = "release-fairlead"
SERVICE = ("Service", f"{NAME}-cluster")


def pod_spec(values):
    return render(values)["Deployment", NAME]["spec"]["template"]["spec"]


def config_of(values):
    return yaml.safe_load(render(values)["ConfigMap", NAME]["data"]["fairlead.yaml"])


@pytest.mark.parametrize("values", [{}, {"replicaCount": 3}, MATRIX["Redis without one order"]])
def test_without_redis_or_where_it_is_switched_off_there_is_no_cluster_port(values):
    documents = render({**values, "networkPolicy": {"enabled": True}})
    assert SERVICE not in documents
    container = pod_spec(values)["containers"][0]
    assert "cluster" not in {port["name"] for port in container["ports"]}
    assert "env" not in container
    assert "host" not in config_of(values).get("cluster", {})
    assert "port: cluster" not in yaml.safe_dump(documents["NetworkPolicy", NAME])


def test_each_pod_tells_the_others_its_own_address_and_keeps_the_environment_that_it_is_given():
    mine = {"name": "MINE", "value": "1"}
    container = pod_spec({**SHARED, "cluster": {"port": 9999}, "env": [mine]})["containers"][0]
    assert container["env"] == [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "FAIRLEAD_CLUSTER__ADVERTISE", "value": "$(POD_IP):9999"},
        mine,
    ]
    assert {"name": "cluster", "containerPort": 9999, "protocol": "TCP"} in container["ports"]


def test_the_gateway_takes_the_address_from_the_environment(monkeypatch):
    monkeypatch.setenv("FAIRLEAD_CLUSTER__ADVERTISE", "10.1.2.3:8083")
    cluster = Config(**config_of(SHARED)).cluster
    assert (cluster.host, cluster.port, cluster.advertise) == ("0.0.0.0", 8083, "10.1.2.3:8083")


def test_pods_that_are_not_ready_are_found_too_because_one_that_has_yet_to_join_is_not():
    spec = render(SHARED)[SERVICE]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert [port["port"] for port in spec["ports"]] == [8083]


def test_the_secret_is_that_of_the_hmacs_unless_one_is_given():
    assert "secret_file" not in config_of(SHARED)["cluster"]
    given = config_of({**SHARED, "cluster": {"existingSecret": "x"}})["cluster"]
    assert given["secret_file"] == "/etc/fairlead-cluster/cluster-secret"


def test_certificates_of_a_secret_make_the_port_mutual_tls():
    values = {**SHARED, "cluster": {"tls": {"existingSecret": "certificates"}}}
    tls = config_of(values)["cluster"]["tls"]
    assert {name: path.rpartition("/")[2] for name, path in tls.items()} == {
        "cert_file": "tls.crt",
        "key_file": "tls.key",
        "ca_file": "ca.crt",
    }
    (volume,) = [each for each in pod_spec(values)["volumes"] if each["name"] == "cluster-tls"]
    assert volume["secret"]["secretName"] == "certificates"


def rules_about(policy, direction):
    return [rule for rule in policy["spec"][direction] if "cluster" in [port["port"] for port in rule.get("ports", ())]]


@pytest.mark.parametrize("backends", [[], [PEER]])
def test_the_network_lets_replicas_and_nothing_else_to_the_cluster_port(backends):
    documents = render({**SHARED, "networkPolicy": {"enabled": True, "from": [PEER], "backends": backends}})
    policy = documents["NetworkPolicy", NAME]
    pods = documents["Deployment", NAME]["spec"]["selector"]
    (inwards,) = rules_about(policy, "ingress")
    assert inwards["from"] == [{"podSelector": pods}]
    assert [port["port"] for port in inwards["ports"]] == ["cluster"]
    outwards = rules_about(policy, "egress")
    assert [rule["to"] for rule in outwards] == ([[{"podSelector": pods}]] if backends else [])
    assert bool(backends) is ({} not in policy["spec"]["egress"])  # an empty rule lets everything out


def test_a_spread_without_a_selector_is_about_the_pods_of_the_release():
    given = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    other = {**given, "labelSelector": {"matchLabels": {"a": "b"}}}
    own, kept = pod_spec({"topologySpreadConstraints": [given, other]})["topologySpreadConstraints"]
    selector = render({})["Deployment", NAME]["spec"]["selector"]
    assert own == {**given, "labelSelector": selector}
    assert kept == other


def test_the_production_example_survives_the_loss_of_a_node_and_a_rolling_upgrade():
    documents = render(PRODUCTION)
    deployment = documents["Deployment", NAME]["spec"]
    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert documents["PodDisruptionBudget", NAME]["spec"]["minAvailable"] == 2
    spread = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert spread[0]["topologyKey"] == "kubernetes.io/hostname"
    assert spread[0]["whenUnsatisfiable"] == "DoNotSchedule"
    assert all(each["labelSelector"] == deployment["selector"] for each in spread)
    shutdown = config_of(PRODUCTION)["shutdown"]
    grace_s = deployment["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= shutdown["lame_duck_s"] + shutdown["drain_s"] + 5
    assert {SERVICE, ("NetworkPolicy", NAME), ("PrometheusRule", NAME)} <= documents.keys()
    assert not any(kind in {"Secret", "PersistentVolumeClaim"} for kind, _ in documents)


def test_the_production_example_names_every_secret_that_it_needs():
    text = (CHART / "examples/production.yaml").read_text()
    made = {line.split()[5] for line in text.splitlines() if "kubectl create secret generic" in line}
    volumes = pod_spec(PRODUCTION)["volumes"]
    assert made == {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
