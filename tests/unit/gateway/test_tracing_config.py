"""Where traces go: the file before the variables of OpenTelemetry, and nowhere unless one of them says so."""

import pytest
from pydantic import ValidationError

from gateway.config.telemetry import MetricsSection, TracingSection, TracingSettings

DEFAULTS = ("http/protobuf", "parentbased_traceidratio", 0.01)
OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_traces_are_off_while_no_endpoint_is_named():
    assert TracingSection().settings({}) is None
    assert TracingSection().settings({"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_SAMPLER_ARG": "1"}) is None


def test_an_endpoint_turns_them_on_wherever_it_is_named():
    there = TracingSettings("http://c:4318/v1/traces", *DEFAULTS)
    assert TracingSection(endpoint="http://c:4318").settings({}) == there
    assert TracingSection(endpoint="http://c:4318/").settings({}) == there
    assert TracingSection().settings({OTLP: "http://c:4318"}) == there


def test_the_variable_of_traces_alone_holds_as_it_is_written():
    variables = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/spans", OTLP: "http://other"}
    assert TracingSection().settings(variables) == TracingSettings("http://c/spans", *DEFAULTS)


def test_a_grpc_endpoint_has_no_path():
    settings = TracingSection(endpoint="http://c:4317").settings({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert (settings.endpoint, settings.protocol) == ("http://c:4317", "grpc")


def test_the_endpoint_of_the_file_goes_before_the_variable():
    variables = {OTLP: "http://v", "OTEL_TRACES_SAMPLER": "always_off", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    assert TracingSection().settings(variables) == TracingSettings(
        "http://v/v1/traces", "http/protobuf", "always_off", 0.5
    )
    assert TracingSection(endpoint="http://f").settings(variables) == TracingSettings(
        "http://f/v1/traces", "http/protobuf", "always_off", 0.5
    )


def test_opentelemetrys_own_switch_turns_them_off():
    assert TracingSection(endpoint="http://c").settings({"OTEL_SDK_DISABLED": "True"}) is None


@pytest.mark.parametrize(
    "variable",
    [
        {"OTEL_TRACES_SAMPLER": "sometimes"},
        {"OTEL_TRACES_SAMPLER_ARG": "1.5"},
        {"OTEL_TRACES_SAMPLER_ARG": "nan"},
        {"OTEL_TRACES_SAMPLER_ARG": "a few"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
    ],
)
def test_a_variable_that_makes_no_sense_is_named(variable):
    (name,) = variable
    with pytest.raises(ValueError, match=name):
        TracingSection().settings({OTLP: "http://c", **variable})


def test_an_endpoint_that_makes_no_sense_is_refused():
    with pytest.raises(ValidationError):
        TracingSection(endpoint="collector:4318")


def test_the_number_of_series_has_a_limit():
    with pytest.raises(ValidationError):
        MetricsSection(tenants_max=1001)
