"""The official packages for Node do what their documentation says, with another base URL.

One program makes all calls, because a start of Node takes longer than they do. It is left out where there is no
Node, or where `make` has not installed the packages.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import until

FOLDER = Path(__file__).parent / "node"
TIMEOUT_S = 60
NODE = shutil.which("node")
EXPECTED = {
    "chat": 8,
    "chatStream": ["length", 8],
    "completion": 1,
    "response": 8,
    "responseStream": ["response.created", 8],
    "models": ["tiny"],
    "requestId": "node-1",
    "abort": True,
    "message": ["max_tokens", 8],
    "messageStream": ["text", 8],
    "countTokens": True,
}
RAISED = {
    "notFound": ("NotFoundError", 404),
    "badRequest": ("BadRequestError", 400),
    "unauthorized": ("AuthenticationError", 401),
    "rateLimited": ("RateLimitError", 429),
    "messageNotFound": ("NotFoundError", 404),
    "messageUnauthorized": ("AuthenticationError", 401),
    "messageRateLimited": ("RateLimitError", 429),
}
pytestmark = [
    pytest.mark.skipif(NODE is None, reason="there is no Node here"),
    pytest.mark.skipif(not (FOLDER / "node_modules/openai").exists(), reason="npm has not installed the packages"),
]


@pytest.fixture(scope="module")
def results(house):
    command = [NODE, "calls.mjs", house.url, house.key, house.limited_key]
    run = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr
    until(lambda: house.in_flight() == 0, what="the stream that was aborted has ended")
    return json.loads(run.stdout)


def test_node_makes_no_other_calls(results):
    assert results.keys() == EXPECTED.keys() | RAISED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_node_gets_what_it_asked_for(results, name):
    assert results[name] == EXPECTED[name]


@pytest.mark.parametrize("name", RAISED)
def test_node_raises_its_own_errors(results, name):
    error = results[name]
    assert (error["name"], error["status"]) == RAISED[name]
    assert error["requestId"] or name.startswith("message")  # where Anthropic's package looks for another header
    assert (error["retryAfter"] is not None) == (error["status"] == 429)
