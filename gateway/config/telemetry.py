"""Tracing and metrics sections.

The tracing section or OTEL_EXPORTER_OTLP_ENDPOINT sets the endpoint of traces; without an endpoint, traces are off.
OpenTelemetry's own variables set everything else about traces. This module reads the variables of the protocol and of
the sampler; OpenTelemetry itself reads the collector's credentials (OTEL_EXPORTER_OTLP_HEADERS), certificate and
timeout, and the attributes of this process (OTEL_RESOURCE_ATTRIBUTES).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config.sections import Section
from gateway.config.value_types import Count, not_bool

SAMPLER = "parentbased_traceidratio"
SAMPLE_RATIO = 0.01
PROTOCOLS = ("http/protobuf", "grpc")
TRACES_PATH = "/v1/traces"
TENANT_SERIES_MAX = 1000  # measured: more series would delay requests


def _endpoint(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be like http://host:port")
    return value


class Sampler(NamedTuple):
    """The meaning of one value of OTEL_TRACES_SAMPLER: whether the caller's decision is followed, and the part of the
    root spans that is sampled (`ratio`; None: the setting `sample_ratio`).
    """

    follows_parent: bool
    ratio: float | None


SAMPLERS: Mapping[str, Sampler] = {
    "parentbased_traceidratio": Sampler(follows_parent=True, ratio=None),
    "parentbased_always_on": Sampler(follows_parent=True, ratio=1.0),
    "parentbased_always_off": Sampler(follows_parent=True, ratio=0.0),
    "traceidratio": Sampler(follows_parent=False, ratio=None),
    "always_on": Sampler(follows_parent=False, ratio=1.0),
    "always_off": Sampler(follows_parent=False, ratio=0.0),
}


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """The settings with which tracing runs. `endpoint` is the whole URL that spans are sent to, with its path."""

    endpoint: str
    protocol: str
    sampler: str
    sample_ratio: float


class TracingSection(Section):
    """The settings of traces. `endpoint` None: that of the OTEL_* variables; if they have none, no traces."""

    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None

    def settings(self, environ: Mapping[str, str]) -> TracingSettings | None:
        """The effective settings from this section and these variables; None: no traces. Raises ValueError."""
        own, shared = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        base = self.endpoint or shared
        if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not (base or own):
            return None
        protocol = _variable(environ, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"), PROTOCOLS)
        sampler = _variable(environ, ("OTEL_TRACES_SAMPLER",), (SAMPLER, *SAMPLERS))
        if self.endpoint is None and own:
            endpoint = own
        else:
            assert base, "there is one, or none at all"
            endpoint = base if protocol == "grpc" else base.rstrip("/") + TRACES_PATH
        return TracingSettings(endpoint, protocol, sampler, _sample_ratio(environ))


class MetricsSection(Section):
    """The settings of the metrics. `port` is a port that serves /metrics without a key; None: only the admin port
    serves it. `tenants_max`: so many tenants, those with the most traffic, have series of their own; all others share
    the series "other".
    """

    host: str = "127.0.0.1"
    port: Annotated[int, BeforeValidator(not_bool), Field(ge=0, le=65_535)] | None = None
    tenants_max: Annotated[Count, Field(le=TENANT_SERIES_MAX)] = 200


def _sample_ratio(environ: Mapping[str, str]) -> float:
    text = environ.get("OTEL_TRACES_SAMPLER_ARG", "")
    try:
        ratio = float(text) if text else SAMPLE_RATIO
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ValueError("the environment variable OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1")
    return ratio


def _variable(environ: Mapping[str, str], names: tuple[str, ...], known: tuple[str, ...]) -> str:
    """The value of the first of these variables that is set, or the first known value where none is."""
    for name in names:
        value = environ.get(name)
        if value:
            if value not in known:
                raise ValueError(f"the environment variable {name} must be one of {', '.join(dict.fromkeys(known))}")
            return value
    return known[0]
