"""Servers by EndpointSlices, from an API server that has nothing else: its answers are shaped as a real one's."""

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration
from listening import listening

from backends.discovery.endpoint_slices import EndpointSlices

PATH = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"


def endpoint(address, *, ready=True, **conditions):
    return {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": True, "terminating": False, **conditions},
        "nodeName": "node-1",
        "targetRef": {"kind": "Pod", "name": f"vllm-{address}", "namespace": "llm", "uid": address},
        "zone": "eu-1a",
    }


def slice_of(name, *endpoints, version="1", ports=(("http", 8000),), kind="IPv4"):
    return {
        "addressType": kind,
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "llm",
            "resourceVersion": version,
            "labels": {"kubernetes.io/service-name": "vllm"},
            "generateName": "vllm-",
        },
        "endpoints": list(endpoints) or None,
        "ports": [{"name": each, "port": port, "protocol": "TCP"} for each, port in ports],
    }


class ApiServer:
    """Lists `slices`, then streams what is put into `changes`; None there breaks the stream off."""

    def __init__(self, *slices):
        self.slices = list(slices)
        self.changes = asyncio.Queue()
        self.asked = []
        self.down = False

    async def answer(self, request):
        self.asked.append(dict(request.query))
        if self.down:
            return web.json_response({"kind": "Status", "code": 503}, status=503)
        if request.query.get("watch") not in ("true", "True"):
            body = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "items": self.slices}
            return web.json_response({**body, "metadata": {"resourceVersion": "1000"}})
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while (change := await self.changes.get()) is not None:
            await response.write(json.dumps(change).encode() + b"\n")
        request.transport.abort()
        return response


@asynccontextmanager
async def watching(api, port=8000, **options):
    """What the source has told so far."""
    app = web.Application()
    app.router.add_get(PATH, api.answer)
    async with listening(app) as url:
        configuration = Configuration(host=url)
        source = EndpointSlices(
            lambda: ApiClient(configuration),
            namespace="llm",
            selector="kubernetes.io/service-name=vllm",
            port=port,
            **options,
        )
        told = []
        task = asyncio.create_task(source.watch(told.append))
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            api.changes.put_nowait(None)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of many things
            await asyncio.sleep(0.005)


def urls(*addresses, port=8000):
    return frozenset(f"http://{address}:{port}" for address in addresses)


async def test_the_ready_pods_of_all_slices_are_the_servers():
    unsaid = {"addresses": ["10.0.0.5"], "conditions": {}}
    ending = endpoint("10.0.0.4", ready=False, terminating=True)
    api = ApiServer(
        slice_of("a", endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False), ending),
        slice_of("b", endpoint("10.0.0.3"), endpoint("10.0.0.1"), unsaid),
        slice_of("c", version="2"),
        slice_of("d", endpoint("vllm.example.com"), kind="FQDN"),
    )
    async with watching(api) as told:
        await until(lambda: told)
        assert told == [urls("10.0.0.1", "10.0.0.3", "10.0.0.5")]
    assert api.asked[0]["labelSelector"] == "kubernetes.io/service-name=vllm"


async def test_a_pod_that_becomes_ready_or_is_about_to_end_is_told_at_once():
    api = ApiServer(slice_of("a", endpoint("10.0.0.1")))
    async with watching(api) as told:
        await until(lambda: len(api.asked) == 2)
        ready = slice_of("a", endpoint("10.0.0.1"), endpoint("10.0.0.2"), version="1001")
        api.changes.put_nowait({"type": "MODIFIED", "object": ready})
        await until(lambda: len(told) == 2)
        assert told[-1] == urls("10.0.0.1", "10.0.0.2")
        ending = slice_of("a", endpoint("10.0.0.1", terminating=True), endpoint("10.0.0.2"), version="1002")
        api.changes.put_nowait({"type": "MODIFIED", "object": ending})
        await until(lambda: len(told) == 3)
        assert told[-1] == urls("10.0.0.2")
        api.changes.put_nowait({"type": "ADDED", "object": slice_of("b", endpoint("10.0.0.9"), version="1003")})
        api.changes.put_nowait({"type": "DELETED", "object": slice_of("a", version="1004")})
        await until(lambda: told[-1] == urls("10.0.0.9"))
    assert api.asked[1]["resourceVersion"] == "1000"


async def test_the_last_pod_that_goes_leaves_none():
    api = ApiServer(slice_of("a", endpoint("10.0.0.1")))
    async with watching(api) as told:
        await until(lambda: len(api.asked) == 2)
        api.changes.put_nowait({"type": "DELETED", "object": slice_of("a", version="1001")})
        await until(lambda: told == [urls("10.0.0.1"), frozenset()])


async def test_a_port_is_found_by_its_name_or_number_and_another_is_no_server():
    slices = [
        slice_of("a", endpoint("10.0.0.1"), ports=[("metrics", 9000), ("http", 8000)]),
        slice_of("b", endpoint("10.0.0.2"), ports=[("http", 8001)]),
        slice_of("c", endpoint("10.0.0.3"), ports=[("metrics", 9000)]),
    ]
    async with watching(ApiServer(*slices), port="http") as told:
        await until(lambda: told)
        assert told == [urls("10.0.0.1") | urls("10.0.0.2", port=8001)]
    async with watching(ApiServer(*slices), port=9000) as told:
        await until(lambda: told)
        assert told == [urls("10.0.0.1", "10.0.0.3", port=9000)]


async def test_where_the_stream_breaks_or_is_too_old_everything_is_listed_anew():
    api = ApiServer(slice_of("a", endpoint("10.0.0.1")))
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    async with watching(api) as told:
        await until(lambda: len(api.asked) == 2)
        api.slices = [slice_of("a", endpoint("10.0.0.2"), version="1005")]
        api.changes.put_nowait(None)
        await until(lambda: told[-1] == urls("10.0.0.2"))
        api.slices = [slice_of("a", endpoint("10.0.0.3"), version="1006")]
        api.changes.put_nowait({"type": "ERROR", "object": gone})
        await until(lambda: told[-1] == urls("10.0.0.3"))


async def test_a_stream_that_falls_silent_is_given_up_without_a_word(caplog):
    api = ApiServer(slice_of("a", endpoint("10.0.0.1")))
    async with watching(api, silence_s=0.1) as told:
        await until(lambda: len(api.asked) == 2)
        api.slices = [slice_of("a", endpoint("10.0.0.2"), version="1005")]
        await until(lambda: told[-1] == urls("10.0.0.2"))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_an_api_server_that_is_away_changes_nothing_and_is_asked_again(caplog):
    api = ApiServer(slice_of("a", endpoint("10.0.0.1")))
    async with watching(api) as told:
        await until(lambda: len(api.asked) == 2)
        api.down = True
        api.changes.put_nowait(None)
        await until(lambda: len(api.asked) >= 4)
        assert told == [urls("10.0.0.1")]
        api.down = False
        api.slices.append(slice_of("b", endpoint("10.0.0.2")))
        await until(lambda: told[-1] == urls("10.0.0.1", "10.0.0.2"))
    assert [record for record in caplog.records if record.levelname == "WARNING"]
