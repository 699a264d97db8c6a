"""No body that the gateway writes itself holds anything that was sent, whatever was wrong with it.

Requests are made up at random, with a marker wherever a client may write: the target, the method, heads, types, keys
and values of JSON, parts of forms. The backend repeats nothing, so an answer that holds the marker is the gateway's.
"""

import json
import string
from collections import Counter
from random import Random

from gateway_rig import MARKER, MODEL, answer, gateway, scripted, wire

from gateway.api.endpoints import ENDPOINTS

REQUESTS = 600
FIELDS = (
    "model", "messages", "prompt", "input", "stream", "stream_options", "n", "best_of", "max_tokens", "tools", "stop",
    "max_completion_tokens", "max_output_tokens", "background", "previous_response_id", "documents", "query", "role",
    "queries", "content", "text", "type", "use_beam_search", "prompt_embeds", "include_usage", "vllm_xargs", "tokens",
)  # fmt: skip
TYPES = ("application/json", "application/json", "text/plain", MARKER, f"multipart/form-data; boundary={MARKER}")
HEADERS = ("authorization", "x-api-key", "x-tenant-id", "x-request-id", "content-encoding", "accept", MARKER, "origin")
METHODS = ("POST", "POST", "POST", "POST", "GET", "PUT", "OPTIONS", MARKER.upper())


def some(rng, depth=0):
    """A JSON value."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 3:
        return MARKER + rng.choice(["", "\ud83d", "\0", "%s", "{}", '"']) if kind else MARKER
    if kind == 3:
        return rng.choice([None, True, -1, 0, 1.5, 10**30, 7])
    if kind == 4:
        return rng.choice([[], {}, "", MODEL])
    if kind == 5:
        return [some(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {name(rng): some(rng, depth + 1) for _ in range(rng.randrange(4))}


def name(rng):
    return rng.choice([*FIELDS, MARKER])


def body(rng, content_type):
    if content_type.startswith("multipart"):
        parts = [
            f'--{MARKER}\r\nContent-Disposition: form-data; name="{name(rng)}"'
            f"{rng.choice(['', '; filename=' + MARKER, '; x=' + MARKER])}\r\n\r\n"
            f"{rng.choice([MARKER, MODEL, 'true'])}\r\n"
            for _ in range(rng.randrange(4))
        ]
        return ("".join(parts) + f"--{MARKER}{rng.choice(['--', ''])}").encode()
    text = json.dumps({"model": rng.choice([MODEL, MODEL, MARKER])} | {name(rng): some(rng) for _ in range(4)}).encode()
    if rng.random() < 0.3:  # broken somewhere
        at = rng.randrange(len(text))
        return text[:at] + rng.choice([MARKER.encode(), b"\xff", b"\0", b'"', b""]) + text[at + rng.randrange(3) :]
    return text


def target(rng):
    path = (
        rng.choice(ENDPOINTS).path.replace("{model}", "{id}").replace("{id}", rng.choice(["resp_1", MARKER, "%2e%2e"]))
    )
    return path + rng.choice(["", "", "", "/", "/" + MARKER, "?a=" + MARKER, "%00" + MARKER, ";" + MARKER])


def request(seed):
    """A request as bytes."""
    rng = Random(seed)
    content_type = rng.choice(TYPES)
    data = body(rng, content_type)
    length = rng.choice([str(len(data))] * 9 + [MARKER])
    lines = [f"{rng.choice(METHODS)} {target(rng)} HTTP/1.1", "Host: x", f"Content-Length: {length}"]
    lines += [f"Content-Type: {content_type}", "Connection: close"]
    for header in rng.sample(HEADERS, rng.randrange(3)):
        lines.append(f"{header}: {rng.choice([MARKER, 'Bearer ' + MARKER, 'Basic ' + MARKER])}")
    if rng.random() < 0.1:
        lines.append(rng.choice([MARKER, f" {MARKER}", f"{MARKER} : x", f"x: {MARKER}\x01"]))
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def test_an_answer_of_the_gateways_own_repeats_nothing():
    statuses = Counter()
    config = {"limits": {"body_timeout_s": 0.5, "body_bytes_max": 400}}
    async with (
        scripted(answer({"id": "x", "usage": {"prompt_tokens": 1}})) as backend,
        gateway(backend, **config) as rig,
    ):
        for seed in range(REQUESTS):
            async with wire(rig) as connection:
                connection.send(request(seed))
                reply = await connection.reply()
            statuses[reply.status] += 1
            assert MARKER not in reply.body.decode().lower(), (seed, request(seed), reply)
            if reply.status >= 400 and reply.body:
                assert_shape(reply, seed)
    assert {200, 307, 400, 401, 404, 405, 413} <= statuses.keys(), "all of it is tried"


def assert_shape(reply, seed):
    """vLLM's, OpenAI's or Anthropic's; text alone where it is an answer to a page's question."""
    if not reply.headers["content-type"].startswith("application/json"):
        assert reply.body == b"Disallowed CORS origin", seed
        return
    error = reply.json
    if "detail" in error:
        assert error in ({"detail": "Not Found"}, {"detail": "Method Not Allowed"}), seed
    elif "error" not in error:
        assert error.keys() == {"message"}, seed  # Cohere's
    elif "type" in error:
        assert error["error"].keys() == {"type", "message"}, seed
    else:
        assert error["error"].keys() - {"limit"} == {"message", "type", "param", "code", "reason"}, seed
        assert set(error["error"]["param"] or "") <= {*string.ascii_lowercase, "_", "1", "2"}, seed
