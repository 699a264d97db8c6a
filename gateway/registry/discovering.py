"""Discovering: makes a discovery source from its configuration."""

from functools import partial
from pathlib import Path

from backends.discovery import Dns, Source
from gateway.config.discovery import Discovery

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def make_source(section: Discovery) -> Source:
    """Make the source of a section. Raises ValueError outside a cluster, or without the Kubernetes client."""
    if section.dns is not None:
        assert isinstance(section.port, int), "checked with the configuration"
        return Dns(section.dns, section.port, scheme=section.scheme)
    try:  # an import of half a second and 48 MB, for Kubernetes alone
        from backends.discovery.cluster import connect, sign_in  # noqa: PLC0415
        from backends.discovery.endpoint_slices import EndpointSlices  # noqa: PLC0415
    except ImportError:
        raise ValueError("discovery by kubernetes needs 'pip install fairlead[kubernetes]'") from None
    assert section.kubernetes is not None, "checked with the configuration"
    return EndpointSlices(
        partial(connect, sign_in()),
        namespace=section.namespace or _own_namespace(),
        selector=section.kubernetes,
        port=section.port,
        scheme=section.scheme,
    )


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        raise ValueError("discovery by kubernetes needs a namespace: the gateway does not run in a cluster") from None
