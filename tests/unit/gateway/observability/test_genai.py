"""The GenAI names are those of the version that the file says."""

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes, http_attributes
from opentelemetry.semconv.schemas import Schemas

from gateway.observability.tracing import genai
from gateway.observability.tracing.genai import operation

NAMES = {name: value for name, value in vars(genai).items() if name.isupper() and isinstance(value, str)}


def words(*modules):
    return {value for module in modules for name, value in vars(module).items() if name.isupper()}


def test_every_attribute_is_one_of_the_conventions():
    known = words(gen_ai_attributes, error_attributes, http_attributes)
    assert {value for value in NAMES.values() if "." in value} <= known


def test_every_metric_is_one_of_the_conventions_as_prometheus_spells_it():
    known = {f"{name.replace('.', '_')}_seconds" for name in words(gen_ai_metrics) if isinstance(name, str)}
    assert {value for value in NAMES.values() if "." not in value} <= known


def test_the_version_is_the_one_that_is_installed():
    assert Schemas.V1_44_0.value.rsplit("/", 1)[1] in genai.__doc__
    assert list(Schemas)[-1] is Schemas.V1_44_0, "newer names: raise genai.py and docs/reference/metrics.md with them"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/responses", "chat"),
        ("/v1/completions", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/rerank", "rerank"),
    ],
)
def test_operations_are_called_as_the_conventions_call_them(path, name):
    assert operation(path) == name
