"""Which headers reach a backend, and what a request is called."""

import pytest
from multidict import CIMultiDict

from gateway.api.headers import FORWARDED, REQUEST_ID_HEADERS, request_id, upstream_headers


def sent(headers, credentials=None):
    return upstream_headers(CIMultiDict(headers), request_id="r-1", credentials=credentials or {})


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "X-API-Key",
        "Api-Key",
        "Cookie",
        "Proxy-Authorization",
        "Host",
        "Content-Length",
        "TE",
        "Upgrade",
        "Connection",
        "Keep-Alive",
        "Transfer-Encoding",
        "Expect",
        "X-Vllm-Priority",
        "X-data-parallel-rank",
        "Forwarded",
        "X-Forwarded-For",
        "Accept-Encoding",
        "X-Tenant-ID",
        "x-llm-d-inference-fairness-id",
        "x-gateway-inference-objective",
        "x-llm-d-slo-ttft-ms",
    ],
)
def test_nothing_that_carries_trust_or_belongs_to_the_connection_is_forwarded(name):
    headers = sent({name: "SENTINEL"})
    assert "SENTINEL" not in headers.values()


def test_tracing_and_session_are_forwarded():
    given = {name.title(): f"value of {name}" for name in FORWARDED}
    assert {name: value for name, value in sent(given).items() if name in FORWARDED} == {
        name: f"value of {name}" for name in FORWARDED
    }


def test_a_header_that_connection_names_stays_here():
    assert "traceparent" not in sent({"Connection": "close, TraceParent", "traceparent": "00-1"})


def test_a_value_that_is_not_printable_ascii_stays_here():
    assert "user-agent" not in sent({"User-Agent": "a\u2028b"})
    assert "user-agent" not in sent({"User-Agent": "a\udcff"})


def test_the_backend_gets_its_own_credentials_and_our_framing():
    headers = sent({"Authorization": "Bearer of-the-client"}, {"authorization": "Bearer of-the-backend"})
    assert headers == {
        "authorization": "Bearer of-the-backend",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-request-id": "r-1",
        "x-vllm-priority": "0",
    }


@pytest.mark.parametrize("name", REQUEST_ID_HEADERS)
def test_a_client_names_its_request_by_any_of_the_usual_headers(name):
    assert request_id(CIMultiDict({name.upper(): "abc-123"}), set(), lambda: "new") == "abc-123"


def test_the_first_usable_name_counts():
    headers = CIMultiDict({"x-request-id": "not ok", "request-id": "fine"})
    assert request_id(headers, set(), lambda: "new") == "fine"


def test_a_name_in_flight_is_not_given_twice():
    assert request_id(CIMultiDict({"x-request-id": "abc"}), {"abc"}, lambda: "new") == "new"


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "a\r\nx: y", 'a"b', "ä", "-a", "a;b", "{}"])
def test_an_unsafe_name_is_replaced(given):
    assert request_id(CIMultiDict({"x-request-id": given}), set(), lambda: "new") == "new"


def test_a_request_without_a_name_gets_one():
    assert request_id(CIMultiDict(), set(), lambda: "new") == "new"
    assert request_id(CIMultiDict({"x-request-id": "a" * 128}), set(), lambda: "new") == "a" * 128
