"""Discovery by Kubernetes' EndpointSlices: the pods behind the services that a label selector names.

The API server lists all slices once and then streams the changes. So a pod is added as soon as the cluster reports it
ready, and removed as soon as it terminates, while it still answers its requests. If the stream breaks or falls silent,
or the API server has forgotten the position in it (410), everything is listed again. (Kubernetes, "EndpointSlices";
discovery.k8s.io/v1.)
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from kubernetes_asyncio import watch
from kubernetes_asyncio.client import ApiClient, DiscoveryV1Api

from backends.discovery.source import OnFound, limited, root_url

RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
LIST_S = 10.0
WATCH_S = 300  # the API server ends the stream after this, and everything is listed anew
# A bookmark comes every minute if anything has changed. Without one nothing changed, or the connection is dead; listing
# anew finds out and costs little.
SILENCE_S = 90.0
log = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[ApiClient]]


class EndpointSlices:
    """A discovery source that finds the ready pods in Kubernetes EndpointSlices. It reads the slices in `namespace`
    that match `selector`.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        namespace: str,
        selector: str,
        port: int | str,
        scheme: str = "http",
        silence_s: float = SILENCE_S,
    ) -> None:
        """`connect` opens a client with credentials for a cluster; `port` is a number, or a name of a port in the
        slices.
        """
        self._connect = connect
        self._namespace = namespace
        self._selector = selector
        self._port = port
        self._scheme = scheme
        self._silence_s = silence_s
        self._slices: dict[str, frozenset[str]] = {}  # by name of the slice: its servers
        self._found: frozenset[str] | None = None
        self._failures = 0

    async def watch(self, on_found: OnFound) -> None:
        while True:
            try:
                async with self._connect() as client:
                    await self._list_and_follow(DiscoveryV1Api(client), on_found)
            except Exception as error:  # noqa: BLE001 - no error may end the watch
                if not self._failures:
                    log.warning("discovery: EndpointSlices of %s: %s", self._selector, _reason(error))
                await asyncio.sleep(RETRY_S[min(self._failures, len(RETRY_S) - 1)])
                self._failures += 1

    async def _list_and_follow(self, api: DiscoveryV1Api, on_found: OnFound) -> None:
        listed = await api.list_namespaced_endpoint_slice(
            self._namespace, label_selector=self._selector, _request_timeout=LIST_S
        )
        self._failures = 0
        self._slices = {each.metadata.name: self._urls(each) for each in listed.items}
        self._report(on_found)
        changes = watch.Watch().stream(
            api.list_namespaced_endpoint_slice,
            self._namespace,
            label_selector=self._selector,
            resource_version=listed.metadata.resource_version,
            timeout_seconds=WATCH_S,
            allow_watch_bookmarks=True,
            _request_timeout=(LIST_S, self._silence_s),
        )
        with suppress(TimeoutError):  # silent: listed anew
            async for change in changes:
                if change["type"] == "BOOKMARK":
                    continue
                name = change["object"].metadata.name
                if change["type"] == "DELETED":
                    self._slices.pop(name, None)
                else:
                    self._slices[name] = self._urls(change["object"])
                self._report(on_found)

    def _report(self, on_found: OnFound) -> None:
        found = limited(url for urls in self._slices.values() for url in urls)
        if found != self._found:
            self._found = found
            on_found(found)

    def _urls(self, endpoint_slice: Any) -> frozenset[str]:
        """Return the URLs of the servers in one slice."""
        if endpoint_slice.address_type == "FQDN":
            return frozenset()
        ports = list(self._ports(endpoint_slice))
        return frozenset(
            root_url(self._scheme, endpoint.addresses[0], port)
            for endpoint in endpoint_slice.endpoints or ()
            if endpoint.addresses and _is_ready(endpoint.conditions)
            for port in ports
        )

    def _ports(self, endpoint_slice: Any) -> Iterator[int]:
        for port in endpoint_slice.ports or ():
            if port.port is not None and self._port in (port.port, port.name):
                yield port.port


def _is_ready(conditions: Any) -> bool:
    """Whether an endpoint is ready. A missing condition counts as true; a terminating endpoint is not ready."""
    return conditions is None or (conditions.ready is not False and conditions.terminating is not True)


def _reason(error: Exception) -> str:
    status = getattr(error, "status", None)
    return f"{type(error).__name__}{f' {status}' if status else ''}"
