"""Load: keeps a number of concurrent calls to one backend in flight through its API."""

import asyncio

from backends.spec import BackendSpec
from gateway.calibrate.calls import CallSender, Target
from gateway.calibrate.mix import Mix


class Load(CallSender):
    """Concurrent calls to one backend. Calls that are not answered when a phase ends are cancelled."""

    def __init__(self, spec: BackendSpec, mix: Mix, *, model: str) -> None:
        super().__init__()
        self._target = Target.at(spec, model)
        self._mix = mix

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
            call = self._mix.call()
            await self.call(self._target, self._target.completion(call.prompt, call.output_tokens, stream=False))
