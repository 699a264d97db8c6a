"""Records workloads as a what-if gets them: a real gateway, real sockets, engines that take as long as their
coefficients say, and clients of which most wait for their answers.

    python tests/benchmarks/what_ifs/record.py [WORKLOAD ...]

Every workload runs for SECONDS, and its last two minutes are recorded: it begins and ends in mid-load, as a what-if of
the last minutes does. A file of tests/benchmarks/data/ has the specification of a simulation, the configuration and the
calls, one JSON line each.
"""

import argparse
import asyncio
import gzip
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[3]), str(HERE.parents[2] / "integration")]

import orjson  # noqa: E402
from admin_rig import Admin, admin  # noqa: E402
from gateway_rig import FAST, bearer, engine  # noqa: E402

from gateway.steering.what_if.changes import PlayedChanges  # noqa: E402
from gateway.steering.what_if.messages import WhatIf  # noqa: E402
from gateway.steering.what_if.what_ifs import _by_pool, _Played, _written  # noqa: E402

DATA = HERE.parents[1] / "data"
SECONDS = 150.0
RECORDED_S = 120.0
WORD = "fair "  # five bytes, about a token
A10G = {**FAST, "coefficients": "a10g-llama2-7b", "block_tokens": 16, "max_model_len": 4096}


@dataclass
class Client:
    """What calls as one tenant: `count` callers, each of which waits for `thinks` after an answer; or, with a `rate`,
    calls a second that wait for nothing. `turns`: sessions of so many calls, whose prompts grow.
    """

    tenant: str
    count: int = 1
    prompt: tuple[int, int] = (80, 100)
    output: tuple[int, int] = (48, 208)
    thinks: tuple[float, float] = (0.0, 0.0)
    rate: float | None = None
    turns: int | None = None


@dataclass
class Workload:
    engines: list[dict[str, Any]]
    tenants: dict[str, dict[str, Any]]
    clients: list[Client] = field(default_factory=list)


WORKLOADS = {
    # As the demo: a flood of twice as many callers as slots, and one that calls a second after each answer.
    "flood": Workload(
        [{**A10G, "requests_running_max": 32}],
        {"flood": {}, "quiet": {}},
        [Client("flood", 64), Client("quiet", output=(32, 32), thinks=(1.0, 1.0))],
    ),
    # Two engines, one of them five times as slow; weights, and a tenant with a limit of one call at a time.
    "two-backends": Workload(
        [{**A10G, "requests_running_max": 12}, {**A10G, "requests_running_max": 12, "speed": 0.2}],
        {"nightly": {}, "papers": {"weight": 2.0}, "intern": {"in_flight_max": 1}, "chat": {}, "notes": {}},
        [
            Client("nightly", 34, prompt=(150, 250), output=(60, 140)),
            Client("papers", 14, prompt=(150, 250), output=(60, 140), thinks=(0.5, 3.0)),
            Client("intern", 5, prompt=(100, 150), output=(20, 60), thinks=(0.1, 0.5)),
            Client("chat", output=(30, 60), rate=0.8),
            Client("notes", 4, output=(30, 60), thinks=(1.0, 4.0)),
        ],
    ),
    # Agents with session ids, whose prompts grow; calls that nobody's answer calls for; callers that think.
    "agents": Workload(
        [{**A10G, "requests_running_max": 12, "kv_tokens_max": 40_000}],
        {"agents": {}, "chat": {}, "batch": {}},
        [
            Client("agents", 14, prompt=(150, 400), output=(40, 120), thinks=(0.1, 1.5), turns=8),
            Client("chat", output=(30, 60), rate=1.0),
            Client("batch", 8, prompt=(200, 400), output=(60, 120), thinks=(0.0, 1.0)),
        ],
    ),
}


async def recorded(workload: Workload) -> bytes:
    """The lines of a recording."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        servers = [await stack.enter_async_context(engine(**options)) for options in workload.engines]
        entries = [
            {"name": f"gpu-{number}", "url": server.url, "requests_running_max": options["requests_running_max"]}
            for number, (server, options) in enumerate(zip(servers, workload.engines, strict=True))
        ]
        settings = {"health": {"idle_s": 1.0, "busy_s": 1.0}}
        api = await stack.enter_async_context(admin(folder, *entries, **settings))
        for tenant, fields in workload.tenants.items():
            made = await api.post("/tenants", {"id": tenant, **fields})
            assert made.status == 201, made.body
        callers = asyncio.gather(
            *[
                caller
                for number, client in enumerate(workload.clients)
                for caller in _callers(api, client, bearer(await api.key_for(client.tenant)), Random(number))
            ]
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(callers), SECONDS)
        steering = api.rig.gateway.operators.steering
        what_ifs = steering.what_ifs
        lines = await steering._recorded.lines(str(RECORDED_S).encode())  # the load goes on
        callers.cancel()
        await asyncio.gather(callers, return_exceptions=True)
        ((pool, calls),) = _by_pool(lines, dict(what_ifs._pools())).items()
        what_if = WhatIf(id="recorded", pool=pool, policy=None, weights={}, minutes=1, changes={})
        played = _Played(calls, None, PlayedChanges())
        _written(folder, what_if, played, what_ifs._engine_of(pool), what_ifs._config_of(pool))
        spec = orjson.loads((folder / "spec.json").read_bytes()) | {
            "instead": None
        }  # which names a file of this folder
        kept = [(folder / name).read_bytes().rstrip() for name in ("fairlead.yaml", "calls.jsonl")]
        return b"\n".join([orjson.dumps(spec), *kept])


def _callers(api: Admin, client: Client, headers: dict[str, str], rng: Random) -> Iterator[Any]:
    if client.rate is not None:
        yield _open(api, client, headers, rng)
        return
    for number in range(client.count):
        yield _closed(api, client, headers, f"{client.tenant} {number}")


async def _open(api: Admin, client: Client, headers: dict[str, str], rng: Random) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(_call(api, client, headers, rng, WORD * rng.randint(*client.prompt)))
            await asyncio.sleep(rng.expovariate(client.rate))


async def _closed(api: Admin, client: Client, headers: dict[str, str], name: str) -> None:
    rng = Random(name)
    await asyncio.sleep(rng.uniform(0.0, client.thinks[1]))
    prompt, session, turn = "", 0, 0
    while True:
        if client.turns is None or turn % client.turns == 0:
            prompt, session = f"{rng.random()} ", session + 1
        prompt += WORD * rng.randint(*client.prompt)
        named = {} if client.turns is None else {"X-Session-Id": f"{name}-{session}"}
        await _call(api, client, {**headers, **named}, rng, prompt)
        turn += 1
        await asyncio.sleep(rng.uniform(*client.thinks))


async def _call(api: Admin, client: Client, headers: dict[str, str], rng: Random, prompt: str) -> None:
    body = {
        "model": FAST["model"], "messages": [{"role": "user", "content": prompt}], "stream": True,
        "max_tokens": rng.randint(*client.output),
    }  # fmt: skip
    reply = await api.rig.post(body, headers=headers)
    assert reply.status == 200, reply.body


def main() -> None:
    parser = argparse.ArgumentParser(description="Record workloads as a what-if gets them.")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; all, by default")
    for name in parser.parse_args().workloads or WORKLOADS:
        lines = asyncio.run(recorded(WORKLOADS[name]))
        (DATA / f"what_if_{name}.jsonl.gz").write_bytes(gzip.compress(lines + b"\n", mtime=0))
        print(f"{name}: {len(lines.splitlines()) - 2} calls")


if __name__ == "__main__":
    main()
