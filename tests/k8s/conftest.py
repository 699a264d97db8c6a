"""A control plane for all tests here, and a namespace for each."""

import itertools
import os
import shutil
import statistics
from pathlib import Path

import pytest
import yaml
from api import Api, RefusedError
from cluster import OLDEST, make_namespace, until
from control_plane import ControlPlane
from renderings import CHART

HOST = "10.250.0.1"  # in a network of our own: see run.sh
SLICES = ("discovery.k8s.io/v1", "EndpointSlice")
_numbers = itertools.count(1)
_measured: list[str] = []


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    with ControlPlane(tmp_path_factory.mktemp("plane"), HOST) as plane:
        with plane.api() as api:
            for file in sorted(Path(os.environ.get("TEST_CRDS", "/nowhere")).glob("*.yaml")):
                for document in yaml.safe_load_all(file.read_text()):
                    define(api, document)
            if not api.serves(*SLICES):
                define(api, _SLICES_AS_RESOURCE)
            _measured.append("kube-apiserver {gitVersion}, built with {goVersion}".format(**api.ask("GET", "/version")))
        yield plane


@pytest.fixture(scope="session")
def api(plane):
    """As the cluster's administrator."""
    with plane.api() as api:
        yield api


@pytest.fixture
def namespace(api):
    """A new one; its name."""
    return make_namespace(api, f"test-{next(_numbers)}")


@pytest.fixture
def chart(api, tmp_path):
    """The chart; for a server that is too old for it a copy that does not say so."""
    if api.version() >= OLDEST:
        return CHART
    copied = shutil.copytree(CHART, tmp_path / "chart")
    about = yaml.safe_load((copied / "Chart.yaml").read_text())
    del about["kubeVersion"]
    (copied / "Chart.yaml").write_text(yaml.safe_dump(about))
    return copied


@pytest.fixture
def measured():
    """Notes down what a test has measured, once or several times; said at the end of the run."""

    def note(what, *values):
        spread = f"{statistics.median(values)}, the longest of {len(values)} {max(values)}" if values[1:] else values[0]
        _measured.append(f"{what}: {spread}")

    return note


def pytest_terminal_summary(terminalreporter):
    if _measured:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(_measured))


def define(api: Api, resource):
    """Returns when the server has it among its resources."""
    api.create(resource)
    spec = resource["spec"]
    paths = [f"/apis/{spec['group']}/{each['name']}" for each in spec["versions"] if each["served"]]
    until(lambda: all(served(api, f"{path}/{spec['names']['plural']}") and served(api, path) for path in paths))


def served(api, path):
    try:
        api.ask("GET", path)
    except RefusedError:
        return False
    return True


# A server older than 1.21 has EndpointSlices as v1beta1 only. There the group's v1 is a resource of our own: lists,
# watches, selectors, tokens and RBAC are the server's, and nothing else of it is used here.
_SLICES_AS_RESOURCE = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "endpointslices.discovery.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "discovery.k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "EndpointSlice", "plural": "endpointslices", "singular": "endpointslice"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
