"""Agents in a closed loop, in a process of their own: each sends a turn when the one before was answered.

Reads one JSON job from standard input and plays it for its `seconds`: `tenants` gives the number of agents of each. An
agent's prompt begins with `first` random token ids and gets `added` more with each turn. Writes a JSON record for each
turn and each whole session:

turn:    {"kind": "turn", "tenant", "prompt", "cached", "output", "ttft_s", "ended_s", "error"}
session: {"kind": "session", "tenant", "began_s", "seconds", "is_over"}

A session that is not over when the job ends has the seconds that it has lasted. Beside the agents, `chats` clients of
the tenant "chat" send short prompts without a session, each a second after the answer to the one before.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import uvloop
from client import VOCABULARY, Answer, completion

CACHED = re.compile(rb'"cached_tokens":\s*(\d+)')


CHAT = SimpleNamespace(tenant="chat", prompt=64, output=16, gap_s=1.0)


class Turn(Answer):
    """One turn on one connection; its record also has the prompt tokens that were cached."""

    @property
    def cached(self) -> int:
        found = CACHED.findall(self._tail)
        return int(found[-1]) if found else 0


class Agent:
    """One agent: session after session, turn after turn."""

    def __init__(
        self, job: SimpleNamespace, tenant: str, name: str, began_at: float, write: Callable[..., None]
    ) -> None:
        self._job, self._tenant, self._name, self._write = job, tenant, name, write
        self._rng = Random(f"{job.seed} {name}")
        self._loop = asyncio.get_running_loop()
        self._began_at = began_at
        self._session_began_s: float | None = None

    @property
    def now_s(self) -> float:
        return self._loop.time() - self._began_at

    async def play(self) -> None:
        """Until the job ends."""
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        number = 0
        while True:
            number += 1
            self._session_began_s = self.now_s
            prompt = self._ids(self._job.first)
            for turn in range(1, self._job.turns + 1):
                headers = {"X-Session-ID": f"{self._name}-{number}"}
                if turn == self._job.turns and self._job.tell_final:
                    headers["X-Dynamo-Session-Final"] = "true"
                await self._turn(prompt, headers, self._job.output)
                prompt += self._ids(self._job.added)
                await asyncio.sleep(self._job.gap_s)
            self.session_ends(is_over=True)

    async def chat(self) -> None:
        """Short prompts without a session, until the job ends."""
        await asyncio.sleep(self._rng.uniform(0.0, CHAT.gap_s))
        while True:
            await self._turn(self._ids(CHAT.prompt), None, CHAT.output)
            await asyncio.sleep(CHAT.gap_s)

    def session_ends(self, *, is_over: bool) -> None:
        """Write the record of the session that runs, if one does."""
        began_s = self._session_began_s
        if began_s is not None:
            seconds = self.now_s - began_s
            self._write(kind="session", tenant=self._tenant, began_s=began_s, seconds=seconds, is_over=is_over)

    async def _turn(self, prompt: list[int], headers: dict[str, str] | None, output: int) -> None:
        job, ended = self._job, self._loop.create_future()
        request = {"tenant": self._tenant, "output": output, "prompt": len(prompt)}
        body = completion(prompt, output, port=job.port, model=job.model, tenant=self._tenant, headers=headers or {})
        answers: list[Turn] = []

        def answer() -> Turn:
            turn = Turn(self._loop, request, body, time.perf_counter(), ended.set_result)
            answers.append(turn)
            return turn

        try:
            await self._loop.create_connection(answer, "127.0.0.1", self._job.port)
            record: dict[str, Any] = await ended
        except OSError as error:
            record = {"error": str(error), "first_s": None}
        self._write(
            kind="turn",
            tenant=self._tenant,
            prompt=len(prompt),
            cached=answers[0].cached if answers else 0,
            output=output,
            ttft_s=record["first_s"],
            ended_s=self.now_s,
            error=record["error"],
        )

    def _ids(self, count: int) -> list[int]:
        return [self._rng.choice(VOCABULARY) for _ in range(count)]


async def main() -> None:
    job = SimpleNamespace(**json.load(sys.stdin))
    began_at = asyncio.get_running_loop().time()

    def write(**record: Any) -> None:
        sys.stdout.write(json.dumps(record) + "\n")

    agents = [
        Agent(job, tenant, f"{tenant}{number}", began_at, write)
        for tenant, count in job.tenants.items()
        for number in range(count)
    ]
    chats = [Agent(job, CHAT.tenant, f"{CHAT.tenant}{number}", began_at, write) for number in range(job.chats)]
    tasks = [asyncio.create_task(agent.play()) for agent in agents]
    tasks += [asyncio.create_task(client.chat()) for client in chats]
    done, _ = await asyncio.wait(tasks, timeout=job.seconds)
    for task in done:
        task.result()  # an agent that ended has failed
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for agent in agents:
        agent.session_ends(is_over=False)


if __name__ == "__main__":
    uvloop.run(main())
