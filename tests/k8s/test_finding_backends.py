"""Discovery as a pod does it: by the account that the chart makes, its token on disk, and what the cluster says."""

import asyncio
import contextlib
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
import yaml
from api import RefusedError
from gateway_rig import FAST, call, gateway, running, snapshots_of, until
from renderings import helm_in

from backends.engine.http.server import EngineOptions, EngineServer
from gateway.store.sqlite import SqliteStore

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # in a /run of our own: see run.sh
IN_ROTATION_S_MAX = 15.0
PORT = 8000
A, B, C = "10.250.1.1", "10.250.1.2", "10.250.1.3"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "addressType": "IPv4",
    "endpoints": [],
    "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
}
DISCOVERY = {"kubernetes": "kubernetes.io/service-name=vllm", "port": "http"}


class Pod:
    """What lies in a pod's file system: the account that the chart made there, and a token that a kubelet renews."""

    def __init__(self, plane, api, namespace, installed):
        self.plane = plane
        self.api = api
        self.namespace = namespace
        self.installed = installed
        self._path = f"/api/v1/namespaces/{namespace}"
        self._holder = ""
        self._written = 0

    def renew(self):
        """A new token on disk, changed over as a kubelet does; the one before is not valid any more. Returns it."""
        old, self._written = self._holder, self._written + 1
        self._holder = f"holder-{self._written}"
        holder = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": self._holder}}
        uid = self.api.create(holder, self.namespace)["metadata"]["uid"]
        bound = {"kind": "Secret", "apiVersion": "v1", "name": self._holder, "uid": uid}
        account = self.installed["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"]
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound},
        }
        token = self.api.ask("POST", f"{self._path}/serviceaccounts/{account}/token", request)["status"]["token"]
        folder = ACCOUNT / f"..{self._written}"
        folder.mkdir()
        for name, text in (("token", token), ("ca.crt", self.plane.ca), ("namespace", self.namespace)):
            (folder / name).write_text(text)
        link = ACCOUNT / "..new"
        link.symlink_to(folder.name)
        link.rename(ACCOUNT / "..data")
        for name in ("token", "ca.crt", "namespace"):
            with contextlib.suppress(FileExistsError):
                (ACCOUNT / name).symlink_to(f"..data/{name}")
        if old:
            self.api.ask("DELETE", f"{self._path}/secrets/{old}")
        return token


@pytest.fixture
def pod(plane, api, chart, namespace, monkeypatch):
    """The chart is installed, and we are in the gateway's pod."""
    with helm_in(plane.kubeconfig, namespace) as helm:
        release = helm.install(chart, "fairlead", {"config": {"backends": [], "discovery": [DISCOVERY]}})
    installed = {each["kind"]: each for each in yaml.safe_load_all(release["manifest"]) if each}
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", plane.host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(plane.port))
    ACCOUNT.mkdir(parents=True)
    yield Pod(plane, api, namespace, installed)
    shutil.rmtree(ACCOUNT)


@contextlib.asynccontextmanager
async def gateway_in(pod):
    """A gateway that looks for backends as the chart has told it to."""
    told = yaml.safe_load(pod.installed["ConfigMap"]["data"]["fairlead.yaml"])
    async with gateway(store=SqliteStore(None), health={}, discovery=told["discovery"]) as rig:
        yield rig


@contextlib.asynccontextmanager
async def vllm(address, **options):
    """An engine at the address that a pod would have."""
    server = EngineServer(EngineOptions(**FAST, **options))
    await server.start(address, PORT)
    try:
        yield server
    finally:
        await server.stop()


def endpoint(address, *, ready=True, terminating=False):
    conditions = {"ready": ready, "serving": ready or terminating, "terminating": terminating}
    return {"addresses": [address], "conditions": conditions}


class Slice:
    """An EndpointSlice that we write, as the endpointslice controller does."""

    def __init__(self, pod, *endpoints, service="vllm"):
        self._api = pod.api
        self._path = f"{SLICES.format(pod.namespace)}/{service}-1"
        metadata = {"name": f"{service}-1", "labels": {"kubernetes.io/service-name": service}}
        pod.api.create({**SLICE, "metadata": metadata, "endpoints": list(endpoints)}, pod.namespace)

    def has(self, *endpoints):
        self._api.ask("PATCH", self._path, {"endpoints": list(endpoints)})

    def delete(self):
        self._api.ask("DELETE", self._path)


class RunningPod:
    """One of which we say what its kubelet would."""

    def __init__(self, pod, name, address):
        self._api = pod.api
        self._address = address
        self._path = f"/api/v1/namespaces/{pod.namespace}/pods/{name}"
        spec = {"nodeName": "node", "containers": [{"name": "vllm", "image": "vllm"}]}
        metadata = {"name": name, "labels": {"app": "vllm"}}
        self._api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, pod.namespace)

    @staticmethod
    def node(api):
        """Where they run."""
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})

    def is_ready(self):
        self._publish("True")

    def is_not_ready(self):
        self._publish("False")

    def _publish(self, ready):
        status = {
            "phase": "Running",
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
            "conditions": [{"type": "Ready", "status": ready}],
        }
        self._api.ask("PATCH", f"{self._path}/status", {"status": status})

    def is_told_to_end(self):
        """It has 30 s."""
        self._api.ask("DELETE", self._path)


def backends(rig):
    """Those that are sent calls."""
    states = [snapshot.backends.items() for snapshot in snapshots_of(rig.gateway.pools).values()]
    here = rig.gateway.backends.backend_ids()
    return {name.partition(":")[0] for each in states for name, view in each if view.available and name in here}


async def seconds(change, condition):
    """From when the change was sent to the API server."""
    began = time.monotonic()
    await asyncio.to_thread(change)
    await until(condition, IN_ROTATION_S_MAX)
    return round(time.monotonic() - began, 3)


async def measure_ready(rig, ready, not_ready, measured, what=""):
    """B beside A, ten times; it stays."""
    came, went = [], []
    for _ in range(10):
        came.append(await seconds(ready, lambda: backends(rig) == {A, B}))
        went.append(await seconds(not_ready, lambda: backends(rig) == {A}))
    came.append(await seconds(ready, lambda: backends(rig) == {A, B}))
    measured(f"{what}ready to in rotation, s", *came)
    measured(f"{what}not ready to out of rotation, s", *went)


async def test_a_ready_server_is_in_rotation_and_a_leaving_one_is_drained(pod, measured):
    pod.renew()
    async with vllm(A, speed=0.05) as a, vllm(B, speed=0.05), vllm(C):
        Slice(pod, endpoint(C), service="other")
        written = Slice(pod, endpoint(A))
        async with gateway_in(pod) as rig:
            await until(lambda: backends(rig) == {A})
            ready = partial(written.has, endpoint(A), endpoint(B))
            not_ready = partial(written.has, endpoint(A), endpoint(B, ready=False))
            await measure_ready(rig, ready, not_ready, measured)
            streams = [asyncio.create_task(rig.post(call(stream=True, max_tokens=100))) for _ in range(2)]
            await until(lambda: running(a) == 1)
            leaving = partial(written.has, endpoint(A, ready=False, terminating=True), endpoint(B))
            measured("terminating to out of rotation, s", await seconds(leaving, lambda: backends(rig) == {B}))
            assert running(a) == 1, "what it runs goes on"
            for _ in range(4):
                assert (await rig.post(call(max_tokens=1))).status == 200
            assert running(a) == 1, "nothing more is sent there"
            for stream in streams:
                assert (await stream).events[-1] == "[DONE]"
            await until(lambda: f"{A}:{PORT}" not in rig.gateway.backends.states())
            measured("slice deleted to out of rotation, s", await seconds(written.delete, lambda: not backends(rig)))


async def test_an_api_server_that_dies_harms_nothing_and_is_followed_again(pod, measured):
    pod.renew()
    async with vllm(A), vllm(B):
        written = Slice(pod, endpoint(A))
        async with gateway_in(pod) as rig:
            await until(lambda: backends(rig) == {A})
            pod.plane.kill_api_server()
            assert (await rig.post()).status == 200
            await asyncio.to_thread(pod.plane.start_api_server)
            assert backends(rig) == {A}
            ready = partial(written.has, endpoint(A), endpoint(B))
            took = await seconds(ready, lambda: backends(rig) == {A, B})
            measured("ready to in rotation when the API server is just back, s", took)


async def test_a_token_that_is_renewed_on_disk_is_used(pod, measured):
    old = pod.renew()
    async with vllm(A), vllm(B):
        written = Slice(pod, endpoint(A))
        async with gateway_in(pod) as rig:
            await until(lambda: backends(rig) == {A})
            pod.renew()
            pod.plane.kill_api_server()
            await asyncio.to_thread(pod.plane.start_api_server)
            with pod.plane.api(old) as as_before, pytest.raises(RefusedError, match="401"):
                as_before.ask("GET", SLICES.format(pod.namespace))
            ready = partial(written.has, endpoint(A), endpoint(B))
            took = await seconds(ready, lambda: backends(rig) == {A, B})
            measured("ready to in rotation with a new token, s", took)


def test_the_account_may_read_slices_where_it_is_and_nothing_else(pod):
    """What every account may ask is not counted: those are rights to itself."""
    with pod.plane.api(pod.renew()) as account:
        assert account.ask("GET", SLICES.format(pod.namespace))["kind"] == "EndpointSliceList"
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        said = account.ask(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            {**review, "spec": {"namespace": pod.namespace}},
        )
        rules = [rule for rule in said["status"]["resourceRules"] if not rule["resources"][0].startswith("selfsubject")]
        assert rules == [
            {"verbs": ["list", "watch"], "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}
        ]
        for path in (
            SLICES.format("default"),
            SLICES.format(pod.namespace) + "/vllm-1",
            "/apis/discovery.k8s.io/v1/endpointslices",
            f"/api/v1/namespaces/{pod.namespace}/pods",
            f"/api/v1/namespaces/{pod.namespace}/secrets",
            f"/api/v1/namespaces/{pod.namespace}/configmaps",
        ):
            with pytest.raises(RefusedError, match="403"):
                account.ask("GET", path)
        with pytest.raises(RefusedError, match="403"):
            account.ask("POST", SLICES.format(pod.namespace), {**SLICE, "metadata": {"name": "mine"}})


async def test_pods_of_a_service_are_found_as_they_get_ready_and_left_as_they_end(pod, measured):
    if not pod.plane.has_controllers:
        pytest.skip("nothing makes slices of pods: KUBE_CONTROLLER_MANAGER names no controllers")
    pod.renew()
    RunningPod.node(pod.api)
    service = {"selector": {"app": "vllm"}, "ports": [{"name": "http", "port": 80, "targetPort": PORT}]}
    pod.api.create(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vllm"}, "spec": service}, pod.namespace
    )
    async with vllm(A, speed=0.05) as a, vllm(B, speed=0.05), gateway_in(pod) as rig:
        vllm_a, vllm_b = RunningPod(pod, "a", A), RunningPod(pod, "b", B)
        await seconds(vllm_a.is_ready, lambda: backends(rig) == {A})
        await measure_ready(rig, vllm_b.is_ready, vllm_b.is_not_ready, measured, what="pod ")
        streams = [asyncio.create_task(rig.post(call(stream=True, max_tokens=100))) for _ in range(2)]
        await until(lambda: running(a) == 1)
        ends = await seconds(vllm_a.is_told_to_end, lambda: backends(rig) == {B})
        measured("pod told to end to out of rotation, s", ends)
        for stream in streams:
            assert (await stream).events[-1] == "[DONE]"
