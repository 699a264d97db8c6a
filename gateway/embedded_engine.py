"""EmbeddedEngine: the engine inside a gateway that has no backends."""

from typing import TYPE_CHECKING

from backends.spec import BackendSpec
from gateway.config.sections import EngineSection

if TYPE_CHECKING:  # loaded only where it is on
    from backends.engine.http.server import EngineServer


class EmbeddedEngine:
    """A simulated inference engine that runs inside the gateway. A gateway without configured backends uses it as its
    only backend. Call `start` only in this case, and `stop` at the end.
    """

    def __init__(self, section: EngineSection) -> None:
        self._section = section
        self._server: EngineServer | None = None

    @property
    def is_running(self) -> bool:
        return self._server is not None

    async def start(self) -> BackendSpec:
        """Start the engine's server; return it as a backend. Raises OSError."""
        from backends.engine.http.server import EngineOptions, EngineServer  # noqa: PLC0415 - a tenth of the time of a start

        section = self._section
        options = EngineOptions(
            model=section.model,
            coefficients=section.coefficients,
            batching=section.batching,
            kv_tokens_max=section.kv_tokens_max,
            requests_running_max=section.requests_running_max,
        )
        self._server = EngineServer(options)
        return BackendSpec(
            id="embedded",
            url=await self._server.start(),
            requests_running_max=options.requests_running_max,
            step_tokens_max=options.chunk_tokens_max,
        )

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
