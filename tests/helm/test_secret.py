"""The secret that pods on one Redis share: made once where the chart sees the cluster, and the same ever after."""

import base64
import contextlib
import http.server
import json
import threading

import pytest
import yaml
from renderings import helm, render

from gateway.config import Config
from gateway.config.key_file import first_key

SHARING = {"replicaCount": 2, "redis": {"url": "redis://redis:6379"}}
NAMESPACE = "/api/v1/namespaces/llm"
MADE = ("Secret", "release-fairlead-hmac")
RESOURCES = [
    {"name": name, "kind": kind, "namespaced": namespaced, "verbs": ["get"]}
    for name, kind, namespaced in (("secrets", "Secret", True), ("namespaces", "Namespace", False))
]


class Cluster:
    """An API server that has what is in `objects`, by path, and can be asked for single ones."""

    def __init__(self):
        self.objects = {
            "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES},
            NAMESPACE: {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "llm"}},
        }

    def keep(self, secret):
        self.objects[f"{NAMESPACE}/secrets/{secret['metadata']['name']}"] = secret

    @contextlib.contextmanager
    def seen(self):
        """As helm sees it."""
        objects = self.objects

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                found = objects.get(self.path.partition("?")[0])
                gone = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
                body = json.dumps(found or gone).encode()
                self.send_response(200 if found else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with helm().Config(kube_apiserver=url, namespace="llm") as seen:
                yield seen
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def cluster():
    return Cluster()


def decoded(secret):
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}


def test_it_is_made_once_and_kept_over_upgrades_and_uninstalling(cluster):
    with cluster.seen() as seen:
        first = render(SHARING, cluster=seen)[MADE]
        assert first["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert render(SHARING, cluster=seen)[MADE]["data"] != first["data"]  # it is random
        cluster.keep(first)
        assert render({**SHARING, "replicaCount": 3}, cluster=seen)[MADE]["data"] == first["data"]


def test_the_gateway_takes_what_is_in_it(cluster, tmp_path):
    with cluster.seen() as seen:
        documents = render(SHARING, cluster=seen)
    for name, text in decoded(documents[MADE]).items():
        (tmp_path / name).write_text(text)
    spec = documents["Deployment", "release-fairlead"]["spec"]["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if each.get("secret", {}).get("secretName") == MADE[1]]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    text = documents["ConfigMap", "release-fairlead"]["data"]["fairlead.yaml"]
    config = Config(**yaml.safe_load(text.replace(mount["mountPath"], str(tmp_path))))
    assert len(config.auth.secret_bytes()) == 64
    assert len(first_key(config.admin.key_file)) == 43


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"redis": {"url": ""}, "replicaCount": 2},
        {**SHARING, "keys": {"existingHmacSecret": "mine"}},
        {
            **SHARING,
            "keys": {"existingSecret": "mine"},
            "config": {"auth": {"mode": "keys"}, "tenants": {"alice": {}}},
        },
        {"redis": SHARING["redis"], "persistence": {"enabled": True}},
    ],
)
def test_none_is_made_where_it_is_given_or_of_one_pod(cluster, values):
    with cluster.seen() as seen:
        assert MADE not in render(values, cluster=seen)


def test_where_the_cluster_cannot_be_seen_it_is_asked_for(cluster):
    del cluster.objects[NAMESPACE]
    with cluster.seen() as seen, pytest.raises(helm().HelmRenderError, match=r"does not see namespace llm"):
        render(SHARING, cluster=seen)


def test_a_secret_of_the_same_name_without_the_entries_gets_them(cluster):
    with cluster.seen() as seen:
        cluster.keep(
            {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": MADE[1]}, "data": {"admin-key": "eA=="}}
        )
        data = render(SHARING, cluster=seen)[MADE]["data"]
    assert data["admin-key"] == "eA=="
    assert len(base64.b64decode(data["fairlead.secret"])) == 64


def test_with_a_key_of_its_own_the_admin_port_does_not_use_the_one_that_was_made(cluster):
    with cluster.seen() as seen:
        documents = render({**SHARING, "admin": {"existingSecret": "mine"}}, cluster=seen)
    config = yaml.safe_load(documents["ConfigMap", "release-fairlead"]["data"]["fairlead.yaml"])
    assert config["admin"]["key_file"] == "/etc/fairlead-admin/admin-key"
