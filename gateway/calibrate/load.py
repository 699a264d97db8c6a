"""Load: keeps a number of concurrent calls to one backend in flight through its API."""

import asyncio
from typing import Self

import aiohttp

from backends.spec import BackendSpec
from gateway.calibrate.mix import LoadCall, Mix

CALL_TIMEOUT_S = 120.0
REFUSED_PAUSE_S = 0.5
FAILURES_MAX = 20  # and no call that went well: nothing will come of it
ERROR_CHARS_MAX = 300
ANSWER_BYTES_MAX = 1 << 20


class CalibrationError(Exception):
    """Nothing could be measured; the message says why."""


class Load:
    """Concurrent calls to one backend. Calls that are not answered when a phase ends are cancelled."""

    def __init__(self, spec: BackendSpec, mix: Mix, *, model: str) -> None:
        self._spec = spec
        self._model = model
        self._mix = mix
        self._failures = 0
        self.answered = 0

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_S), connector=aiohttp.TCPConnector(limit=0)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def run(self, concurrent: int, seconds: float) -> None:
        """Keep a number of calls in flight for a time. Raises CalibrationError where the backend answers none."""
        workers = [asyncio.create_task(self._call_again_and_again()) for _ in range(concurrent)]
        try:
            done, _ = await asyncio.wait(workers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                worker.result()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _call_again_and_again(self) -> None:
        while True:
            why = await self._call(self._mix.call())
            if why is None:
                self.answered += 1
                continue
            self._failures += 1
            if not self.answered and self._failures >= FAILURES_MAX:
                raise CalibrationError(f"{self._spec.url} answers no call: {why}")
            await asyncio.sleep(REFUSED_PAUSE_S)

    async def _call(self, call: LoadCall) -> str | None:
        """Make one call; return what went wrong."""
        body = {
            "model": self._model,
            "prompt": call.prompt,
            "max_tokens": call.output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
        }
        url, tls = f"{self._spec.url}/v1/completions", self._spec.tls if self._spec.tls is not None else True
        try:
            async with self._session.post(url, json=body, headers=self._spec.headers, ssl=tls) as response:
                answer = await response.content.read(ANSWER_BYTES_MAX)
                if response.status == 200:
                    return None
                return f"status {response.status} {answer.decode('utf-8', 'replace')[:ERROR_CHARS_MAX]}"
        except (aiohttp.ClientError, OSError) as error:
            return str(error) or type(error).__name__
