"""The chart's HPA, as the real autoscaler takes it: replicas come where event loops are late, an upgrade keeps them."""

import asyncio
import contextlib
import datetime as dt
import ssl

import pytest
from aiohttp import web
from cluster import PATIENCE_S
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from renderings import helm_in

METRIC = "fairlead_event_loop_lag_seconds_p99"
ADAPTER = "10.251.7.7"
ROOT = "/apis/custom.metrics.k8s.io/v1beta1"
VALUES = {"autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 5}}


def tls(folder):
    """Of no authority: the API server is told not to verify it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "adapter")])
    now = dt.datetime.now(dt.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + dt.timedelta(days=1))
    pem, unlocked = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unlocked))
    (folder / "crt").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    return context


class Adapter:
    """Serves one metric of pods to the autoscaler, as one for Prometheus does: `lag_s` seconds, shared by all."""

    def __init__(self, api, namespace):
        self.lag_s = 0.0
        self.asked = set()
        self._api = api
        self._namespace = namespace

    @contextlib.asynccontextmanager
    async def served(self, folder):
        app = web.Application()
        app.router.add_get(ROOT, self._resources)
        app.router.add_get(f"{ROOT}/namespaces/{self._namespace}/pods/*/{{metric}}", self._values)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, ADAPTER, 443, ssl_context=tls(folder)).start()
        service = {"clusterIP": ADAPTER, "ports": [{"port": 443, "protocol": "TCP"}]}
        named = {"name": "adapter", "namespace": self._namespace}
        self._api.create({"apiVersion": "v1", "kind": "Service", "metadata": named, "spec": service})
        self._api.create(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {**named, "labels": {"kubernetes.io/service-name": "adapter"}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.250.1.9"]}],
                "ports": [{"port": 443, "protocol": "TCP"}],
            }
        )
        registered = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.custom.metrics.k8s.io"},
            "spec": {
                "group": "custom.metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {**named, "port": 443},
            },
        }
        self._api.create(registered)
        try:
            yield self
        finally:
            path = f"{self._api.path(registered)}/v1beta1.custom.metrics.k8s.io"
            await asyncio.to_thread(self._api.ask, "DELETE", path)
            await runner.cleanup()

    async def _resources(self, request):
        resource = {"name": f"pods/{METRIC}", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
        group = {"groupVersion": "custom.metrics.k8s.io/v1beta1", "resources": [resource]}
        return web.json_response({"kind": "APIResourceList", "apiVersion": "v1", **group})

    async def _values(self, request):
        self.asked.add(request.match_info["metric"])
        selected = await asyncio.to_thread(pods, self._api, self._namespace, request.query["labelSelector"])
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        items = [
            {
                "describedObject": {"kind": "Pod", "namespace": self._namespace, "name": pod["metadata"]["name"]},
                "metricName": METRIC,
                "timestamp": now,
                "value": f"{round(self.lag_s / len(selected) * 1000)}m",
            }
            for pod in selected
        ]
        group = {"kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta1", "metadata": {}}
        return web.json_response({**group, "items": items})


def pods(api, namespace, selector="app.kubernetes.io/name=fairlead"):
    return api.ask("GET", f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]


def run(api, namespace):
    """What scheduler and kubelet do: all pods that wait are ready now."""
    for pod in pods(api, namespace):
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        if "nodeName" not in pod["spec"]:
            target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
            named = {"name": pod["metadata"]["name"]}
            api.ask(
                "POST", f"{path}/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": named, "target": target}
            )
            now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": now}]
            status = {"phase": "Running", "startTime": now, "conditions": conditions}
            api.ask("PATCH", f"{path}/status", {"status": status})


async def replicas_become(api, namespace, wanted):
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/fairlead"
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(api.ask, "GET", path))["spec"]["replicas"] != wanted:
            await asyncio.to_thread(run, api, namespace)
            await asyncio.sleep(0.1)


async def test_event_loops_that_are_late_bring_replicas_which_an_upgrade_leaves_alone(
    plane, api, chart, namespace, tmp_path
):
    if not plane.has_controllers:
        pytest.skip("nothing scales: KUBE_CONTROLLER_MANAGER names no controllers")
    adapter = Adapter(api, namespace)
    async with adapter.served(tmp_path):
        with helm_in(plane.kubeconfig, namespace) as helm:
            await asyncio.to_thread(helm.install, chart, "fairlead", VALUES)
            await replicas_become(api, namespace, 1)
            adapter.lag_s = 0.15  # the chart's target is 0.05 s for each
            await replicas_become(api, namespace, 3)
            assert adapter.asked == {METRIC}
            await asyncio.to_thread(helm.upgrade, chart, "fairlead", {**VALUES, "podAnnotations": {"a": "b"}})
            deployment = api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/fairlead")
            assert deployment["spec"]["template"]["metadata"]["annotations"]["a"] == "b"
            assert deployment["spec"]["replicas"] == 3
