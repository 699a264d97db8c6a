"""A real control plane of a test's own: etcd and a kube-apiserver, and a kube-controller-manager where there is one.

    with ControlPlane(folder, "10.250.0.1") as plane: ... plane.api().version() ... plane.kill_api_server()

No kubelet: pods stay pending until a test says of them what a kubelet would say.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
from api import Api, RefusedError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

BUILT = Path(__file__).parents[2] / "build" / "k8s"
START_S_MAX = 120.0
CONTROLLERS = "deployment,endpointslice,garbagecollector,horizontalpodautoscaling,replicaset,serviceaccount"
LOOK_EVERY = "--horizontal-pod-autoscaler-sync-period=1s"


def program(name: str, variable: str) -> str | None:
    """Where it is: as the variable says, as install.sh has built it, or on PATH."""
    built = BUILT / name
    return os.environ.get(variable) or (str(built) if built.exists() else shutil.which(name))


class ControlPlane:
    """RBAC is on, and no request is anonymous. `host` is an address of this machine, not a loopback one."""

    def __init__(self, folder: Path, host: str) -> None:
        self.host = host
        self.port = _free_port(host)
        self._url = f"https://{host}:{self.port}"
        self._folder = folder
        self._certs = folder / "certs"
        self._token = secrets.token_hex(16)
        self._etcd_url = f"http://127.0.0.1:{_free_port('127.0.0.1')}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        form, unlocked = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (self._folder / "accounts.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, unlocked))
        (self._folder / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        try:
            self._start_etcd()
            self.start_api_server()
            self._start_controllers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._processes)):
            self._kill(name)

    @property
    def ca(self) -> str:
        """What a pod finds in ca.crt."""
        return (self._certs / "apiserver.crt").read_text()

    @property
    def kubeconfig(self) -> str:
        """The administrator's."""
        cluster = {"server": self._url, "certificate-authority": str(self._certs / "apiserver.crt")}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": self._token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "current-context": "test",
            }
        )

    @property
    def has_controllers(self) -> bool:
        return "kube-controller-manager" in self._processes

    def api(self, token: str = "") -> Api:
        """As the account that the token is of, or as the administrator."""
        return Api(self._url, token or self._token, self.ca)

    def kill_api_server(self) -> None:
        self._kill("kube-apiserver")

    def start_api_server(self) -> None:
        """Returns when it is ready."""
        key = self._folder / "accounts.key"
        self._start(
            "kube-apiserver",
            program("kube-apiserver", "KUBE_APISERVER"),
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={self.host}",
            f"--advertise-address={self.host}",
            f"--secure-port={self.port}",
            f"--cert-dir={self._certs}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.251.0.0/16",
            "--endpoint-reconciler-type=none",
            # On a server that has v1beta1 only it would stand in the way of v1 (see conftest.py).
            "--runtime-config=discovery.k8s.io/v1beta1=false",
        )
        self._wait("kube-apiserver", self._is_ready)

    def _start_etcd(self) -> None:
        peers = f"http://127.0.0.1:{_free_port('127.0.0.1')}"
        self._start(
            "etcd",
            program("etcd", "ETCD"),
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        )
        self._wait("etcd", lambda: httpx.get(f"{self._etcd_url}/health", trust_env=False).json()["health"] == "true")

    def _start_controllers(self) -> None:
        found = program("kube-controller-manager", "KUBE_CONTROLLER_MANAGER")
        if found is None:
            return
        kubeconfig = self._folder / "kubeconfig.json"
        kubeconfig.write_text(self.kubeconfig)
        arguments = (f"--kubeconfig={kubeconfig}", f"--controllers={CONTROLLERS}", LOOK_EVERY, "--leader-elect=false")
        self._start("kube-controller-manager", found, *arguments, "--bind-address=127.0.0.1", "--secure-port=0")

    def _is_ready(self) -> bool:
        with self.api() as api:
            return bool(api.ask("GET", "/readyz") == "ok")

    def _start(self, name: str, path: str | None, *arguments: str) -> None:
        assert path is not None, f"there is no {name}: tests/k8s/install.sh says how to get one"
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen([path, *arguments], stdout=log, stderr=log)

    def _wait(self, name: str, is_up: Callable[[], Any]) -> None:
        give_up_at = time.monotonic() + START_S_MAX
        while True:
            log = (self._folder / f"{name}.log").read_text()
            assert self._processes[name].poll() is None, f"{name} has ended: {log[-3000:]}"
            assert time.monotonic() < give_up_at, f"{name} does not answer: {log[-3000:]}"
            try:
                if is_up():
                    return
            except (httpx.HTTPError, OSError, RefusedError):
                pass  # not yet
            time.sleep(0.05)

    def _kill(self, name: str) -> None:
        """As it is asked to end it waits a minute for watches that are open."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
