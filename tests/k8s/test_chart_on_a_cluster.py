"""The chart on a real API server: what it makes is taken whole, changed, changed back, and taken away."""

import copy

import pytest
import yaml
from api import RefusedError
from cluster import OLDEST, make_namespace, until
from renderings import EVERYTHING, FOUND, MATRIX, helm_in, render_all

# What a server may lack, by what turns it on: groups that came later than 1.20, and resources of others.
SWITCHED = {
    "autoscaling": ("autoscaling/v2", "HorizontalPodAutoscaler"),
    "pdb": ("policy/v1", "PodDisruptionBudget"),
    "httpRoute": ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    "monitoring": ("monitoring.coreos.com/v1", "ServiceMonitor"),
}
WITH_DISCOVERY = {**EVERYTHING, "config": {**EVERYTHING["config"], **FOUND["config"]}}
CHANGED = {
    "fullnameOverride": "gate",
    "replicaCount": 1,
    "config": {"backends": [{"url": "http://vllm-0:8000"}], "shutdown": {"lame_duck_s": 1, "drain_s": 300}},
    "service": {"port": 9000},
    "pdb": {"enabled": True, "minAvailable": 1},
    "persistence": {"enabled": True, "size": "2Gi"},
}
LATER = ("nodeTaintsPolicy",)  # fields that servers older than the chart is for do not have
VOLATILE = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")


@pytest.fixture(scope="module", autouse=True)
def namespaces(api):
    for name in ("llm", "models"):
        make_namespace(api, name)


def known_to(api, values):
    """These values without what the server does not have. One that is older than the chart is for cannot take a handler
    away: server-side apply leaves an empty one there, which it refuses.
    """
    known = {key: value for key, value in values.items() if key not in SWITCHED or api.serves(*SWITCHED[key])}
    return known if api.version() >= OLDEST else {key: value for key, value in known.items() if key != "lifecycle"}


def missing(sent, kept, where=""):
    """What was sent and is not in what the server kept."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            if value not in (None, {}, []):
                yield from missing(value, kept.get(key), f"{where}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        for number, (one, other) in enumerate(zip(sent, kept, strict=True)):
            yield from missing(one, other, f"{where}[{number}]")
    elif sent != kept:
        yield f"{where}: {sent!r} became {kept!r}"


def documents(manifest):
    return [document for document in yaml.safe_load_all(manifest) if document]


def lasting(document):
    """Without what the cluster alone writes, anew where it must."""
    document = copy.deepcopy(document)
    document.pop("status", None)
    for field in VOLATILE:
        document["metadata"].pop(field, None)
    document["metadata"].get("annotations", {}).pop("deployment.kubernetes.io/revision", None)
    if document["kind"] == "Service":
        for port in document["spec"]["ports"]:
            port.pop("nodePort", None)
    return document


def accepted(api, document):
    """What the server would make of it. Fails for what it does not take, and for a field that it drops."""
    kept = api.create(document, "llm", dryRun="All", fieldValidation="Strict")
    later = LATER if api.version() < OLDEST else ()
    assert [each for each in missing(document, kept) if not any(f".{field}: " in each for field in later)] == []
    return kept


def test_every_rendering_is_taken_whole(api, measured):
    seen, left_out = [], set()
    for values in MATRIX.values():
        for (kind, _), document in render_all(values):
            if not api.serves(document["apiVersion"], kind):
                left_out.add(kind)
            elif document not in seen:
                seen.append(document)
                accepted(api, document)
    measured(f"documents of {len(MATRIX)} renderings taken", len(seen))
    measured("kinds that this server does not have", sorted(left_out))
    theirs = {"HTTPRoute", "PodMonitor", "PrometheusRule", "ServiceMonitor"}
    later = {"HorizontalPodAutoscaler", "PodDisruptionBudget"} if api.version() < OLDEST else set()
    assert left_out <= theirs | later


def test_pods_are_taken_where_only_restricted_ones_may_run(api, namespace):
    if api.version() < OLDEST:
        pytest.skip("this server has no pod security standards")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.ask("PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    for values in MATRIX.values():
        documents = render_all(values)
        (template,) = [each["spec"]["template"] for (kind, _), each in documents if kind == "Deployment"]
        named = {**template["metadata"], "name": "gateway"}
        pod = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": named}
        pod["spec"] = {**pod["spec"], "serviceAccountName": "default", "priorityClassName": ""}
        (test,) = [each for (kind, _), each in documents if kind == "Pod"]
        for each in (pod, test):
            api.create(each, namespace, dryRun="All")
    pod["spec"]["securityContext"] = {}
    with pytest.raises(RefusedError, match="PodSecurity"):
        api.create(pod, namespace, dryRun="All")


def test_what_a_server_would_drop_or_refuse_is_seen(api):
    (deployment,) = [document for (kind, _), document in render_all({}) if kind == "Deployment"]
    misspelt = copy.deepcopy(deployment)
    misspelt["spec"]["template"]["spec"]["containers"][0]["comand"] = ["x"]
    with pytest.raises((RefusedError, AssertionError)):
        accepted(api, misspelt)
    selects_others = copy.deepcopy(deployment)
    selects_others["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] = "other"
    with pytest.raises(RefusedError, match="selector"):
        accepted(api, selects_others)


def test_it_is_installed_upgraded_rolled_back_and_uninstalled(plane, api, chart, namespace):
    before, other_before = api.everything_in(namespace), api.everything_in("models")

    def state(release):
        return {
            (document["kind"], document["metadata"]["name"], document["metadata"].get("namespace")): lasting(
                api.read(document, namespace)
            )
            for document in documents(release["manifest"])
        }

    with helm_in(plane.kubeconfig, namespace) as helm:
        installed = helm.install(chart, "gate", known_to(api, WITH_DISCOVERY))
        first = state(installed)
        for document in documents(installed["manifest"]):
            assert list(missing(document, api.read(document, namespace))) == []

        upgraded = helm.upgrade(chart, "gate", known_to(api, CHANGED), reset_values=True)
        second = state(upgraded)
        for document in documents(upgraded["manifest"]):
            assert list(missing(document, api.read(document, namespace))) == []
        for kind, name, where in first.keys() - second.keys():
            version = first[kind, name, where]["apiVersion"]
            with pytest.raises(RefusedError, match="404"):
                api.read({"apiVersion": version, "kind": kind, "metadata": {"name": name}}, where or namespace)
        deployment = second["Deployment", "gate", None]
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}

        helm.rollback("gate", version=1)
        assert state(helm.status("gate")) == first
        assert [each["revision"] for each in helm.history("gate")] == [1, 2, 3]

        helm.uninstall("gate")
        assert helm.list(all_states=True) == []
    kept = {("PersistentVolumeClaim", "gate")}  # as its annotation says
    until(lambda: api.everything_in(namespace) - before <= kept)  # a controller ends pods later
    assert api.everything_in(namespace) - before == kept
    assert api.everything_in("models") == other_before


def test_releases_of_one_name_look_for_backends_in_one_namespace(plane, api, chart, namespace):
    values = {"config": {"discovery": [{"kubernetes": "app=vllm", "namespace": "models"}]}}
    other = make_namespace(api, f"{namespace}-other")
    before = api.everything_in("models")
    for each in (namespace, other):
        with helm_in(plane.kubeconfig, each) as helm:
            helm.install(chart, "gate", values)
    for each in (namespace, other):
        with helm_in(plane.kubeconfig, each) as helm:
            helm.uninstall("gate")
    assert api.everything_in("models") == before
