"""Load: keeps a number of concurrent calls to one backend in flight through its API."""

from backends.spec import BackendSpec
from gateway.calibrate.calls import CallSender, Target, run_for
from gateway.calibrate.mix import Mix


class Load(CallSender):
    """A load of concurrent calls to one backend. Calls that are not answered when a phase ends are cancelled."""

    def __init__(self, spec: BackendSpec, mix: Mix, *, model: str) -> None:
        super().__init__()
        self._target = Target.at(spec, model)
        self._mix = mix

    async def run(self, concurrent: int, seconds: float) -> None:
        """Keep a number of calls in flight for a time. Raises CalibrationError where the backend answers none."""
        await run_for(seconds, (self._call_again_and_again() for _ in range(concurrent)))

    async def _call_again_and_again(self) -> None:
        while True:
            call = self._mix.call()
            await self.call(self._target, self._target.completion(call.prompt, call.output_tokens, stream=False))
