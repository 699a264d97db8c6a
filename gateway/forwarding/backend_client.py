"""BackendClient: the connections, credentials and learnt values that the gateway keeps for one backend between calls.

BackendClients has the clients of all backends of one gateway.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from backends.meters.events import StreamMemo
from backends.pool import BackendPool
from backends.spec import BackendSpec
from backends.upstream import ConnectionLimits, Upstream
from gateway.config import Config
from gateway.forwarding.answers.decode_pace import DecodePace

CONNECT_TIMEOUT_S: Final = 3.0
# Below uvicorn's 5 s, so that the gateway and not the backend closes an idle connection.
IDLE_CONNECTION_S: Final = 4.0
IDLE_CONNECTIONS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class BackendClient:
    """The HTTP client of one backend: its connections (`upstream`), its credentials (header fields), and values learnt
    from earlier answers: the form of its streams (`memo`) and its speed of decoding (`pace`).
    """

    upstream: Upstream
    credentials: Mapping[str, str]
    memo: StreamMemo = field(default_factory=StreamMemo)
    pace: DecodePace = field(default_factory=DecodePace)


class BackendClients:
    """The HTTP clients of all backends, by backend id. A client connects with its first call. Mutable."""

    def __init__(self, config: Config, backends: BackendPool, specs: Iterable[BackendSpec]) -> None:
        continuation = config.continuation
        self._resends = config.limits.resends_max > 0
        self._limits = ConnectionLimits(
            connect_timeout_s=CONNECT_TIMEOUT_S,
            idle_s_max=IDLE_CONNECTION_S,
            idle_connections_max=IDLE_CONNECTIONS_MAX,
            silence_s_max=config.limits.answer_silence_s_max,
            silence_s_least=continuation.silence_s if continuation.enabled else None,
        )
        self.backends = backends
        self.by_id: dict[str, BackendClient] = {}
        """Live: each look-up sees the present ones."""
        for spec in specs:
            self.by_id[spec.id] = self.make(spec)

    def make(self, spec: BackendSpec) -> BackendClient:
        """A client of this backend, which connects with its first call."""
        upstream = Upstream(
            spec.url,
            self._limits,
            ssl_context=spec.tls,
            address_allowlist=spec.address_allowlist,
            resends=self._resends,
            is_away=partial(self.backends.is_away, spec.id),
        )
        return BackendClient(upstream, spec.headers, pace=DecodePace(partial(self.backends.decoded, spec.id)))

    def replace(self, spec: BackendSpec) -> BackendClient | None:
        """Make a new client, because the backend's address has changed. Returns the old client, to be closed."""
        before = self.by_id.get(spec.id)
        self.by_id[spec.id] = self.make(spec)
        return before

    def measured_pace(self, backend_id: str) -> float | None:
        """Seconds per token of one sequence, by the backend's counted steps, or else its answers; None: not known."""
        client = self.by_id.get(backend_id)
        if backend_id not in self.backends.states() or client is None:
            return None
        counts = self.backends[backend_id].step_counts
        return counts.token_s if counts.is_counting else client.pace.token_s

    async def close(self) -> None:
        for client in self.by_id.values():
            await client.upstream.aclose()
