"""Every query of the dashboard and the alert rules is about metrics, and labels of them, that the gateway has."""

import json
import re
from pathlib import Path

import pytest
import yaml

from gateway.observability.metrics.instruments import FAMILIES, Histograms

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "helm/files/dashboards/fairlead.json").read_text())
ALERTS = yaml.safe_load((ROOT / "helm/files/alerts.yaml").read_text())
EXAMPLES = {
    name: yaml.safe_load((ROOT / f"helm/examples/{name}.yaml").read_text())
    for name in ("keda", "prometheus-adapter", "engines-hpa")
}
ALERTS_PAGE = (ROOT / "docs/how-to/alerts.md").read_text(encoding="utf-8")

# Prometheus and Kubernetes add these when they scrape.
TARGET_LABELS = {"namespace", "job", "pod", "instance"}
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
KEYWORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}
STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
MATCHERS = re.compile(r"\{([^{}]*)\}")
RANGES = re.compile(r"\[[^\]]*\]")
GROUPINGS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
NAMES = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*(?!\s*\()\b(?!\s*\()")


def metrics():
    """All sample names there are, with their labels."""
    known = {family.name: set(family.labels) for family in FAMILIES} | {name: set() for name in PROCESS}
    for each in Histograms().families():
        for suffix in ("_bucket", "_sum", "_count"):
            known[each.name + suffix] = set(each.labels) | ({"le"} if suffix == "_bucket" else set())
    return known


KNOWN = metrics()
RECORDED = {rule["record"]: rule["expr"] for group in ALERTS["groups"] for rule in group["rules"] if "record" in rule}


def asked(expression):
    """The metrics and the labels that a PromQL expression names."""
    bare = STRINGS.sub('""', expression)
    labels = {name for matchers in MATCHERS.findall(bare) for name in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)}
    bare = RANGES.sub("", MATCHERS.sub("", bare))
    labels |= {name for group in GROUPINGS.findall(bare) for name in re.findall(r"\w+", group)}
    return set(NAMES.findall(GROUPINGS.sub("", bare))) - KEYWORDS, labels


def queries():
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            yield pytest.param(f"sum by ({match[2]}) ({match[1]})", id=f"variable {variable['name']}")
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield pytest.param(rule["expr"], id=rule.get("alert") or rule["record"])


@pytest.mark.parametrize("expression", list(queries()))
def test_a_query_is_about_metrics_and_labels_that_exist(expression):
    names, labels = asked(expression)
    assert names, "it asks for something"
    assert names <= KNOWN.keys()
    assert labels <= TARGET_LABELS.union(*(KNOWN[name] for name in names))


def scaling_queries():
    """What autoscalers ask for in the examples, with the adapter's placeholders filled in."""
    for trigger in EXAMPLES["keda"]["spec"]["triggers"]:
        yield trigger["metadata"]["query"]
    rules = EXAMPLES["prometheus-adapter"]["rules"]
    for rule in rules["custom"] + rules["external"]:
        series = rule["seriesQuery"].partition("{")[0]
        yield rule["seriesQuery"]
        filled = {"<<.Series>>": series, "<<.LabelMatchers>>": 'namespace="x"', "<<.GroupBy>>": "namespace"}
        query = rule["metricsQuery"]
        for placeholder, text in filled.items():
            query = query.replace(placeholder, text)
        yield query


@pytest.mark.parametrize("expression", list(scaling_queries()))
def test_an_example_of_scaling_asks_for_metrics_that_exist_or_are_recorded(expression):
    names, labels = asked(expression)
    assert names
    assert names <= KNOWN.keys() | RECORDED.keys()
    for name in names:
        allowed = KNOWN.get(name) or asked(RECORDED[name])[1] - {"le"}
        assert labels <= TARGET_LABELS | allowed


def test_each_hpa_asks_for_what_the_adapter_of_the_example_serves():
    rules = EXAMPLES["prometheus-adapter"]["rules"]
    custom, external = (
        {rule["seriesQuery"].partition("{")[0] for rule in rules[kind]} for kind in ("custom", "external")
    )
    values = yaml.safe_load((ROOT / "helm/values.yaml").read_text())
    assert custom == {values["autoscaling"]["metricName"]}
    assert external == {each["external"]["metric"]["name"] for each in EXAMPLES["engines-hpa"]["spec"]["metrics"]}


@pytest.mark.parametrize(
    ("expression", "names", "labels"),
    [
        ("up", {"up"}, set()),
        ('sum by (a, b) (rate(x_total{c="y, z=1", d=~"e"}[5m])) > 0.1', {"x_total"}, {"a", "b", "c", "d"}),
        ("(a > 0) unless on (p) (rate(b[10m]) > 0 or c)", {"a", "b", "c"}, {"p"}),
        ("histogram_quantile(0.9, sum by (le) (rate(h_bucket[$__rate_interval])))", {"h_bucket"}, {"le"}),
    ],
)
def test_names_are_found_where_they_stand(expression, names, labels):
    assert asked(expression) == (names, labels)


def test_every_metric_is_on_the_dashboard():
    shown = set().union(
        *(asked(target["expr"])[0] for each in DASHBOARD["panels"] for target in each.get("targets", ()))
    )
    histograms = {name.removesuffix("_bucket") for name in shown if name.endswith("_bucket")}
    assert {family.name for family in FAMILIES} <= shown
    assert {each.name for each in Histograms().families()} == histograms


def test_the_documentation_lists_every_alert():
    alerts = {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"] if "alert" in rule}
    assert set(re.findall(r"^\| `(Fairlead\w+)` \|", ALERTS_PAGE, re.MULTILINE)) == alerts


def test_every_alert_says_how_bad_it_is_and_what_it_is_about():
    for group in ALERTS["groups"]:
        for rule in (each for each in group["rules"] if "alert" in each):
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["annotations"].keys() == {"summary", "description"}


def test_panels_do_not_lie_over_each_other():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
