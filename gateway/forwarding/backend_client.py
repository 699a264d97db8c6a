"""BackendClient: what the gateway keeps of one backend between calls: connections, credentials, learnt values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.meters.events import StreamMemo
from backends.upstream import Upstream
from gateway.forwarding.answers.decode_pace import DecodePace


@dataclass(frozen=True, slots=True)
class BackendClient:
    """The connections and credentials of one backend, and what the gateway learnt from its earlier answers."""

    upstream: Upstream
    credentials: Mapping[str, str]
    memo: StreamMemo = field(default_factory=StreamMemo)
    pace: DecodePace = field(default_factory=DecodePace)
