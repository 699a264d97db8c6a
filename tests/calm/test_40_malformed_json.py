"""Bodies made of pieces of JSON, valid or not: each is parsed or refused with 400 or 413, and none is a failure.

`make test-soak` makes a million, which take minutes.
"""

from random import Random

import pytest
from gateway_rig import CHAT, COMPLETIONS, assert_untouched, gateway, scripted

from gateway.api.bodies import read_body
from gateway.api.calls import CallLimits, parse_call
from gateway.api.endpoints import ENDPOINTS, PathTable
from gateway.api.errors import ProblemError

EXAMPLES = [20_000, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
SEED = 20261123
LIMITS = CallLimits(choices_max=16, prompts_max=128, inputs_max=2048, output_tokens_max=131_072, logprobs_max=20)
NAMES = (
    "model", "messages", "prompt", "max_tokens", "n", "stream", "stream_options", "stop", "logprobs", "echo", "role",
    "content", "type", "text", "tools", "vllm_xargs", "nvext", "cache_salt", "priority", "input", "\\ud800", "\\u0000",
)  # fmt: skip
SCALARS = (
    "null", "true", "false", "0", "-0", "1", "-1", "1e400", "-1e400", "NaN", "Infinity", "1" + "0" * 400, "1.5", "01",
    "9223372036854775808", '""', '"a"', '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\x"', '"\x01"', '"\ufeff"',
    '"5"', "'a'", "nul", "", "+1", ".5", "1.", "0x10", '"unterminated',
)  # fmt: skip
BEFORE = (b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b" " * 9, b"//c\n")
HARD = {
    "nothing": b"",
    "depth 10,000": b"[" * 10_000 + b"]" * 10_000,
    "depth 10,000 of a field": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "duplicate keys": b'{"messages":[],"messages":1}',
    "NaN": b'{"max_tokens":NaN}',
    "lone surrogates": b'{"messages":[{"role":"user","content":"\\ud800"}],"model":"\\udfff"}',
    "1e400": b'{"prompt":"a","max_tokens":1e400}',
    "a huge integer": b'{"prompt":"a","max_tokens":' + b"9" * 5_000 + b"}",
    "bytes that are no UTF-8": b'{"prompt":"\xff\xfe\xc0\x80"}',
    "half": b'{"messages":[{"role":"us',
}


def value(rng, depth):
    kind = rng.random()
    if depth == 0 or kind < 0.45:
        return rng.choice(SCALARS)
    inside = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind < 0.65:
        return "[" + rng.choice((",", ",", ",,", " ")).join(inside) + rng.choice(("]", "]", ",]", ""))
    fields = (f'"{rng.choice(NAMES)}"{rng.choice((":", ":", ""))}{each}' for each in inside)
    return "{" + ",".join(fields) + rng.choice(("}", "}", "}", "", "}}"))


def call_of(rng):
    """A call whose fields are what they should not be."""
    fields = [f'"{name}":{value(rng, 2)}' for name in rng.sample(NAMES, rng.randrange(1, 7))]
    if rng.random() < 0.7:
        fields.append(rng.choice(('"messages":[{"role":"user","content":"a"}]', '"prompt":"a"')))
    return "{" + ",".join(fields) + "}"


def mutated(rng):
    text = (call_of(rng) if rng.random() < 0.7 else value(rng, 4)).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3 and text:
        at = rng.randrange(len(text))
        text = text[:at] + bytes([rng.randrange(256)]) + text[at + rng.randrange(3) :]
    return rng.choice(BEFORE) + text


@pytest.mark.parametrize("examples", EXAMPLES)
def test_every_generated_body_is_parsed_or_refused(examples, figure):
    rng, paths = Random(SEED), PathTable(ENDPOINTS)
    endpoints = [paths.find(path)[0] for path in (CHAT, COMPLETIONS, "/v1/responses", "/v1/embeddings", "/v1/messages")]
    parsed = refused = 0
    for number in range(examples):
        data = mutated(rng)
        try:
            parse_call(endpoints[number % len(endpoints)], read_body("application/json", data, multipart=False), LIMITS)
            parsed += 1
        except ProblemError:
            refused += 1
        except Exception as error:
            raise AssertionError(data) from error
    figure(40, "generated bodies", examples, target="1,000,000 in make test-soak")
    figure(40, "of them failures", examples - parsed - refused, target="0")
    assert parsed > examples / 500, "some are valid"
    assert refused > examples / 10


@pytest.mark.parametrize("name", HARD)
async def test_a_hard_one_is_a_400_over_http_and_costs_nothing(name):
    async with scripted() as backend, gateway(backend) as rig:
        for path in (CHAT, COMPLETIONS):
            reply = await rig.post(HARD[name], path)
            assert reply.status in (400, 404, 413), reply.body[:200]
            assert reply.json["error"]["type"]
        assert_untouched(rig, backend)
