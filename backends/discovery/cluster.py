"""Cluster credentials: the access to the Kubernetes cluster that the gateway's pod runs in."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config

SignIn = Callable[[], Configuration]


def sign_in() -> SignIn:
    """Return a function that reads the credentials from the pod each time, because its token is replaced every hour.
    Raises ValueError outside of a cluster.
    """
    try:
        _in_cluster()
    except ConfigException as error:
        raise ValueError(f"discovery by kubernetes: {error}") from None
    return _in_cluster


def connect(signed_in: SignIn) -> AbstractAsyncContextManager[ApiClient]:
    """Return a client of the API server, to be used for one watch."""
    return ApiClient(signed_in())


def _in_cluster() -> Configuration:
    configuration = Configuration()
    load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration
