"""Which request that waits inside a vLLM with the plugin begins next: by tenants and cache, or by vLLM's priorities."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import plugin
import pytest
from processes import INSTALLED, Gateway, Vllm, until
from wire import COMPLETIONS, Call, fetch

from backends.plugin_reports import PATH

PYTHON = INSTALLED / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def orders(site):
    command = [PYTHON, Path(__file__).parent / "virtual_orders.py", INSTALLED / "model"]
    environment = {**os.environ, **plugin.environment(site)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("order", ["vtc", "dlpm"])
def test_a_tenant_of_three_times_the_weight_is_served_three_times_as_much(orders, order):
    ended = orders[f"{order} by weight"]["ended"]
    assert ended.count("heavy") == ended.count("light") == 40
    assert 26 <= ended[:40].count("heavy") <= 34


def test_deficits_compute_documents_that_are_cached_less_often_than_counters_do(orders):
    computed = {order: orders[order]["computed_tokens"] for order in ("slack", "vtc", "dlpm")}
    assert computed["dlpm"] < 0.6 * computed["vtc"] < 0.6 * computed["slack"]
    assert all(orders["dlpm"]["ended"].count(tenant) == 15 for tenant in ("t0", "t1", "t2", "t3"))


@pytest.fixture(scope="module")
def prioritized(site, tmp_path_factory):
    """Two seats, and a queue that goes by the priority of each call."""
    environment = plugin.environment(site, FAIRLEAD_OPEN="1")
    options = ("--max-num-seqs=2", "--scheduling-policy=priority", *plugin.SCHEDULER)
    server = Vllm(tmp_path_factory.mktemp("prioritized") / "log", *options, environment=environment)
    yield server.start()
    server.stop()


def test_a_gateway_finds_out_that_an_engine_goes_by_priority_and_tells_it(prioritized, tmp_path):
    assert fetch(prioritized.url, COMPLETIONS, body(2))[0] == 200  # an engine that has done nothing has told nothing
    until(lambda: b'"priority"' in fetch(prioritized.url, PATH)[1], what="it has told")
    config = {
        "auth": {"mode": "open", "trusted_proxies": ["127.0.0.1/32"], "secret_file": str(tmp_path / "secret")},
        "tiers": {"high": {"priority": 5}, "low": {}},
        "tenants": {"high": {"tier": "high"}, "low": {"tier": "low"}},
        "scheduling": {"limit": "room"},
    }
    gateway = Gateway(tmp_path, prioritized, backend={"requests_running_max": 16}, config=config).start()
    ended = []

    def ask(tenant, output_tokens):
        with Call(gateway.url, COMPLETIONS, body(output_tokens), headers={"X-Tenant-ID": tenant}) as call:
            assert call.response.status == 200, call.response.read()
            call.response.read()
        ended.append(tenant)

    try:
        with ThreadPoolExecutor(8) as clients:
            first = [clients.submit(ask, "low", tokens) for tokens in (1000, 3000)]
            until(lambda: prioritized.metrics().requests_running == 2, what="the seats are taken")
            late = [clients.submit(ask, "low", 200) for _ in range(3)]
            until(lambda: prioritized.metrics().requests_waiting == 3, what="three wait inside")
            urgent = clients.submit(ask, "high", 4)
            for each in (*first, *late, urgent):
                each.result()
        # It follows the shorter of those that ran by a few milliseconds, in which their clients may change places.
        assert ended.index("high") <= 1
    finally:
        gateway.stop()


def body(output_tokens):
    return {"model": "tiny", "prompt": "a", "max_tokens": output_tokens, "ignore_eos": True}
