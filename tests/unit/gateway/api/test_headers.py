"""Which headers reach a backend."""

import pytest
from multidict import CIMultiDict

from gateway.api.headers import FORWARDED, upstream_headers


def sent(headers, credentials=None):
    return upstream_headers(
        CIMultiDict(headers), request_id="r-1", content_type="application/json", credentials=credentials or {}
    )


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
