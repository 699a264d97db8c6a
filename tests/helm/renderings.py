"""The chart's documents for many sets of values, for the tests that judge them."""

import functools
import itertools
import json
from pathlib import Path

import yaml

CHART = Path(__file__).parents[2] / "helm"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it

HOSTS = ["llm.example.com", "models.example.com"]
BESIDE = {
    "image": "busybox",
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
}
PEER = {"podSelector": {"matchLabels": {"app": "x"}}}
EVERYTHING = {
    "global": {"imageRegistry": "mirror.example.com"},
    "image": {"registry": "images.example.com", "tag": "1.2.3", "digest": f"sha256:{'0a' * 32}"},
    "imagePullSecrets": [{"name": "pull"}],
    "replicaCount": 3,
    "config": {
        "backends": [{"url": "http://vllm-0:8000", "api_key_env": "VLLM_KEY"}, {"url": "https://vllm-1:8443"}],
        "tiers": {"interactive": {"weight": 4, "envelope": {"ttft_ms": 500, "tpot_ms": 50}}},
        "tenants": {"alice": {"tier": "interactive", "cost_per_day_max": 1000000, "cost_per_month_max": 123456789.5}},
        "prices": {"m": {"currency": "EUR", "periods": [{"prompt": 0.6, "cached_prompt": 0.000001, "output": "2.40"}]}},
        "budgets": {"webhook": {"url": "https://hooks.example.com", "secret_file": "/webhook/secret"}},
        "auth": {"mode": "keys"},
        "shutdown": {"lame_duck_s": 7.5, "drain_s": 120},
    },
    "keys": {"existingSecret": "fairlead-keys"},
    "admin": {"port": 9000, "existingSecret": "fairlead-admin"},
    "redis": {"url": "rediss://redis:6379/0", "existingSecret": "fairlead-redis"},
    "cluster": {"port": 8084, "existingSecret": "fairlead-cluster", "tls": {"existingSecret": "fairlead-cluster-tls"}},
    "monitoring": {
        "prometheus": {"enabled": True, "keySecret": {"name": "metrics"}, "labels": {"release": "prometheus"}},
        "rules": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "env": [{"name": "VLLM_KEY", "valueFrom": {"secretKeyRef": {"name": "vllm", "key": "api-key"}}}],
    "envFrom": [{"configMapRef": {"name": "more"}}],
    "service": {"type": "LoadBalancer", "port": 8000, "annotations": {"a": "b"}},
    "ingress": {"enabled": True, "className": "nginx", "hosts": HOSTS, "tls": [{"secretName": "tls"}]},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "edge"}], "hostnames": HOSTS},
    "autoscaling": {
        "enabled": True,
        "maxReplicas": 5,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    },
    "pdb": {"enabled": True, "minAvailable": "50%"},
    "networkPolicy": {"enabled": True, "from": [PEER], "adminFrom": [PEER], "backends": [PEER]},
    "serviceAccount": {"name": "gateway", "annotations": {"a": "b"}},
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 1}},
    "deploymentAnnotations": {"a": "b"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "llm"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "priorityClassName": "high",
    "extraVolumes": [{"name": "ranks", "emptyDir": {}}, {"name": "webhook", "secret": {"secretName": "webhook"}}],
    "extraVolumeMounts": [{"name": "ranks", "mountPath": "/ranks"}, {"name": "webhook", "mountPath": "/webhook"}],
    "probes": {"liveness": {"periodSeconds": 30}},
    "lifecycle": {"preStop": {"exec": {"command": ["/fairlead/bin/python", "-c", "pass"]}}},
    "initContainers": [{"name": "first", **BESIDE}],
    "extraContainers": [{"name": "beside", **BESIDE}],
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "mine"},
            "data": {"of": "{{ .Release.Name | b64enc }}"},
        },
        "apiVersion: v1\nkind: Secret\nmetadata: {name: '{{ .Release.Name }}-text'}\n",
    ],
    "commonLabels": {"cost-centre": "42", "app.kubernetes.io/name": "never"},
    "commonAnnotations": {"owner": "llm"},
    "fullnameOverride": "gate",
}
FOUND = {
    "config": {
        "backends": [],
        "discovery": [
            {"kubernetes": "kubernetes.io/service-name=vllm", "port": "http"},
            {"kubernetes": "kubernetes.io/service-name=vllm", "namespace": "models"},
            {"dns": "vllm.other.svc", "port": 8000},
        ],
    }
}
SHARED = {"redis": EVERYTHING["redis"], "keys": {"existingHmacSecret": "hmac"}}  # state that pods share
METRICS = {"metrics": {"enabled": True, "port": 9999}}
SWITCHES = ("monitoring", "redis", "ingress", "httpRoute", "autoscaling", "pdb", "networkPolicy")
PRODUCTION = yaml.safe_load((CHART / "examples/production.yaml").read_text())
PAIRS = {
    f"{one} and {other}": {one: {**EVERYTHING[one]}, other: {**EVERYTHING[other]}, "keys": SHARED["keys"]}
    for one, other in itertools.combinations(SWITCHES, 2)
}
MATRIX = {
    "defaults": {},
    "everything": EVERYTHING,
    "production": PRODUCTION,
    "Redis without one order": {
        **SHARED,
        "config": {"cluster": {"enabled": False}},
        "networkPolicy": {"enabled": True},
    },
    "no backends": {"config": {"backends": [], "shutdown": {"lame_duck_s": 0, "drain_s": 0}}},
    "an end that is not set": {"config": {"shutdown": None}},
    "backends that are found": FOUND,
    "a claim": {"persistence": {"enabled": True, "storageClass": "ssd"}},
    "another's claim": {"persistence": {"enabled": True, "existingClaim": "mine"}},
    "no admin port": {"admin": {"enabled": False}, "networkPolicy": {"enabled": True}},
    "no account": {"serviceAccount": {"create": False}},
    "a route without timeouts": {"httpRoute": {**EVERYTHING["httpRoute"], "timeouts": None}},
    "no metric of the loop": {"autoscaling": {"enabled": True, "eventLoopLagSeconds": ""}},
    "Redis without the admin port": {**SHARED, "admin": {"enabled": False}},
    "a monitor of pods": {
        "monitoring": {"prometheus": {**EVERYTHING["monitoring"]["prometheus"], "kind": "PodMonitor"}}
    },
    "a port for metrics": {
        **METRICS,
        "monitoring": {"prometheus": {"enabled": True}},
        "networkPolicy": {"enabled": True},
    },
    "a port for metrics alone": {
        **METRICS,
        "admin": {"enabled": False},
        "monitoring": {"prometheus": {"enabled": True, "kind": "PodMonitor"}},
    },
    "keys that are made while it runs": {"config": {"auth": {"mode": "keys"}}, "persistence": {"enabled": True}},
    **PAIRS,
}


@functools.cache
def helm():
    """helm_python, loaded by the first test that needs it: Go's runtime starts threads, and a fork of the process that
    collects tests (tests/forked_workers.py) would be without them.
    """
    import helm_python  # noqa: PLC0415

    return helm_python


def helm_in(kubeconfig, namespace):
    """helm for releases in a namespace of a cluster: a context."""
    return helm().Config(kubeconfig_content=kubeconfig, namespace=namespace)


def render_all(values, *, name="release", cluster=None):
    """All documents, each with its kind and name; the notes are left out. `cluster` is what the templates see. They are
    rendered once, and not to be changed.
    """
    if cluster is None:
        return _rendered(json.dumps(values), name)
    with helm().Chart.load(CHART) as chart:
        chart.validate_schema(values)
        return _documents(cluster.render(chart, values, name=name, namespace="llm"))


@functools.cache
def _rendered(values, name):
    with helm().Chart.load(CHART) as chart:
        chart.validate_schema(json.loads(values))
        return _documents(chart.render(json.loads(values), name=name, namespace="llm"))


def _documents(rendered):
    texts = [text for file, text in rendered.items() if not file.endswith("NOTES.txt")]
    documents = [document for text in texts for document in yaml.load_all(text, LOADER) if document]
    return [((document["kind"], document["metadata"]["name"]), document) for document in documents]


def render(values, *, name="release", cluster=None):
    """The same by kind and name."""
    return dict(render_all(values, name=name, cluster=cluster))
