"""Values that would fail later, or silently do nothing, are refused by the chart with a sentence that helps."""

import pytest
from renderings import EVERYTHING, SHARED, helm, render

KEYS = {"auth": {"mode": "keys"}}
PROMETHEUS = {"prometheus": EVERYTHING["monitoring"]["prometheus"]}
REFUSED = {
    "two pods with one volume": ({"replicaCount": 2, "persistence": {"enabled": True}}, "one volume for one pod"),
    "pods that may become two with one volume": (
        {"autoscaling": {"enabled": True}, "persistence": {"enabled": True, "existingClaim": "mine"}},
        "one volume for one pod",
    ),
    "two pods with one volume while one is replaced": (
        {"persistence": {"enabled": True}, "strategy": {"type": "RollingUpdate"}},
        "must be Recreate",
    ),
    "a claim that is not used": ({"persistence": {"existingClaim": "mine"}}, "persistence.enabled is false"),
    "a password for no Redis": ({"redis": {"existingSecret": "x"}}, "set redis.url"),
    "two Redis": (
        {"redis": {"url": "redis://a:6379"}, "config": {"state": {"redis": {"url": "redis://b:6379"}}}},
        "name two servers",
    ),
    "a secret for replicas that do not meet": ({"cluster": {"existingSecret": "x"}}, "set redis.url"),
    "certificates for replicas that are not to meet": (
        {**SHARED, "config": {"cluster": {"enabled": False}}, "cluster": {"tls": {"existingSecret": "x"}}},
        "leave config.cluster.enabled out",
    ),
    "a port of the cluster that the chart does not know": (
        {**SHARED, "config": {"cluster": {"port": 9000}}},
        "config.cluster.port is set by the chart",
    ),
    "two ports in one": ({**SHARED, "cluster": {"port": 8081}}, "cluster.port=8081 is a port of the pod already"),
    "no keys": ({"config": {**KEYS, "tenants": {"alice": {}}}}, "there are no keys"),
    "no keys, and no port to make any at": (
        {"config": {**KEYS, "tenants": {"alice": {}}}, "admin": {"enabled": False}},
        "there are no keys",
    ),
    "no keys, and no port to make any at, with a volume": (
        {"config": {**KEYS, "tenants": {"alice": {}}}, "admin": {"enabled": False}, "persistence": {"enabled": True}},
        "there are no keys",
    ),
    "keys of no tenant": ({"config": KEYS, "keys": {"existingSecret": "x"}}, "there are no tenants"),
    "keys that are not asked for": ({"keys": {"existingSecret": "x"}}, "config.auth.mode is open"),
    "two secrets": (
        {
            "config": {**KEYS, "tenants": {"alice": {}}},
            "keys": {"existingSecret": "x", "existingHmacSecret": "y"},
        },
        "take keys.existingHmacSecret out",
    ),
    "one secret for each pod on one Redis": (
        {"replicaCount": 2, "redis": {"url": "redis://a:6379"}},
        "keys.existingHmacSecret",
    ),
    "a secret that the next pod does not have": (
        {"config": {"state": {"redis": {"url": "redis://a:6379"}}}},
        "keys.existingHmacSecret",
    ),
    "a port that the service does not know": (
        {"config": {"listen": {"port": 9000}}},
        "config.listen.port is set by the chart",
    ),
    "a port for admins that no service has": (
        {"admin": {"enabled": False}, "config": {"admin": {"enabled": True}}},
        "config.admin.enabled is set by the chart",
    ),
    "a file where nothing is": (
        {"config": {"auth": {"keys_file": "/keys"}}},
        "config.auth.keys_file is set by the chart",
    ),
    "more pods at least than at most": (
        {"autoscaling": {"enabled": True, "minReplicas": 5}},
        "minReplicas is more than",
    ),
    "metrics where there is no port": (
        {"admin": {"enabled": False}, "monitoring": PROMETHEUS},
        "can read metrics nowhere",
    ),
    "metrics that ask for a key": ({"monitoring": {"prometheus": {"enabled": True}}}, "can read metrics nowhere"),
    "a port for metrics that no service has": (
        {"config": {"metrics": {"port": 9090}}},
        "config.metrics.port is set by the chart",
    ),
    "metrics that no peer may read": (
        {"networkPolicy": {"enabled": True, "metricsFrom": []}, "monitoring": PROMETHEUS},
        "set networkPolicy.metricsFrom",
    ),
}
TAKEN = {
    "keys that the admin API makes and a volume keeps": {"config": KEYS, "persistence": {"enabled": True}},
    "tokens of a provider instead of keys": {
        "config": {
            **KEYS,
            "tenants": {"alice": {}},
            "jwt": {"data": [{"issuer": "https://idp.example.com", "audience": "fairlead"}]},
        }
    },
    "the secret by a variable": {
        "redis": {"url": "redis://a:6379"},
        "replicaCount": 2,
        "env": [{"name": "FAIRLEAD_AUTH__SECRET", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}}],
    },
    "a volume that has the secret": {"redis": {"url": "redis://a:6379"}, "persistence": {"enabled": True}},
    "several pods that share nothing": {"replicaCount": 2},
    "a policy without metrics": {"networkPolicy": {"enabled": True, "metricsFrom": []}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_a_sentence(name):
    values, sentence = REFUSED[name]
    with pytest.raises(helm().HelmRenderError, match=sentence):
        render(values)


@pytest.mark.parametrize("name", TAKEN)
def test_what_has_a_meaning_is_taken(name):
    assert render(TAKEN[name])
