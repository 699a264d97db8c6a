"""Trials: one prompt to one model as a chosen tenant, asked by an operator that has no key of the tenant.

The call goes through the server of the data port, over a pair of sockets within this process, with a key that is
accepted only for this call. So the tenant's limits, order, prices and charges hold as for any of its calls, whatever
the port's address, TLS and processes are. No prompt and no answer is stored.
"""

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import orjson

from gateway.config.key_file import new_key
from gateway.identity.auth import Identity
from gateway.identity.key_ring import KeyRing
from gateway.observability.tracing.sampling import write_traceparent
from gateway.steering.requests import RequestRow

PATH: Final = "/v1/chat/completions"
LINE_BYTES_MAX: Final = 1 << 20  # of an event, or of an error's body
LOOK_S: Final = 1.0  # as often as the live page
DATA: Final = b"data: "


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCall:
    """A call that an operator makes as a chosen tenant, to try one prompt; `model` may be an alias."""

    tenant: str
    model: str
    prompt: str
    output_tokens_max: int


class TrialResult(msgspec.Struct, kw_only=True):
    """The result of a trial call: a prompt that an operator sends as a chosen tenant, to see how the gateway serves it.

    `text` is the answer. `status` is the HTTP status that the data port (for clients) returned, and `error` why the
    call was refused or failed. `queue_s` is the time in the queue; null: the call was never sent to a backend. `ttft_s`
    is the time from its arrival to its first token, `duration_s` to its end. `cost` is exact decimal text; null: there
    is no price. `trace_id` is the id of the trace of the call, at the gateway and the backend.
    """

    request_id: str
    trace_id: str
    text: str = ""
    status: int = 0
    error: str | None = None
    backend: str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost: str | None = None
    currency: str | None = None


class Trials:
    """The part of one process that makes an operator's trial calls as chosen tenants. Made on the loop."""

    def __init__(
        self,
        data_port: Callable[[], asyncio.Protocol],
        keys: KeyRing[Identity],
        ended: Callable[[str], RequestRow | None],
        *,
        tenant_is_model: bool,
    ) -> None:
        """`data_port` makes the protocol of a connection, `keys` are accepted there besides all others, and `ended`
        finds a call that has ended by its id.
        """
        self._data_port = data_port
        self._keys = keys
        self._ended = ended
        self._tenant_is_model = tenant_is_model

    def is_of_tenant(self, trial: TrialCall) -> bool:
        """Whether the call belongs to its tenant: if models are the tenants, its model has to be the tenant."""
        return not self._tenant_is_model or trial.model == trial.tenant

    async def run(self, trial: TrialCall) -> AsyncGenerator[str | TrialResult]:
        """Yield the text of the answer as it arrives, "" after LOOK_S without text, and the TrialResult at the end. If
        the iteration stops early, the call ends.
        """
        trace_id, key = secrets.randbits(128) or 1, new_key()
        result = TrialResult(request_id=f"trial-{secrets.token_hex(8)}", trace_id=f"{trace_id:032x}")
        headers = {
            "authorization": f"Bearer {key}",
            "x-request-id": result.request_id,
            "traceparent": write_traceparent(trace_id, secrets.randbits(64) or 1, is_sampled=True),
        }
        self._keys.put(result.request_id, self._keys.hmac_hex(key), Identity(trial.tenant))
        try:
            reader, writer = await self._connect()
            try:
                writer.write(_request(headers, trial))
                while (line := await _line(reader)) != b"":
                    text = "" if line is None else _read(line, result)
                    if text or line is None:
                        result.text += text
                        yield text
            finally:
                writer.close()
        finally:
            self._keys.drop(result.request_id)
        _fill(result, self._ended(result.request_id))
        yield result

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._data_port, theirs)
        except BaseException:  # a transport closes its socket, and `ours` has none yet
            ours.close()
            raise
        return await asyncio.open_unix_connection(sock=ours, limit=LINE_BYTES_MAX)


def _request(headers: Mapping[str, str], trial: TrialCall) -> bytes:
    """The request in HTTP/1.0, whose answer ends with its connection and has no chunks."""
    body = json.dumps(
        {
            "model": trial.model,
            "messages": [{"role": "user", "content": trial.prompt}],
            "max_tokens": trial.output_tokens_max,
            "stream": True,
        }
    ).encode()
    fields = {"host": "trial", "content-type": "application/json", "content-length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {PATH} HTTP/1.0\r\n{head}\r\n".encode() + body


async def _line(reader: asyncio.StreamReader) -> bytes | None:
    """The next line; b"" at the end, None where none has come for LOOK_S."""
    try:
        async with asyncio.timeout(LOOK_S):
            return await reader.readline()
    except TimeoutError:
        return None


def _read(line: bytes, result: TrialResult) -> str:
    """The text of a line of the answer; its status or error is set in the result."""
    if not result.status:
        result.status = int(line.split()[1])
        return ""
    data = line.removeprefix(DATA).strip()
    if not data.startswith(b"{"):  # a field, an empty line, a comment, [DONE]
        return ""
    try:
        event: dict[str, Any] = orjson.loads(data)
    except orjson.JSONDecodeError:  # of a backend's own error page
        return ""
    error = event.get("error")
    if error is not None:
        result.error = str(error.get("message")) if isinstance(error, dict) else str(error)
    delta = next((choice.get("delta") or {} for choice in event.get("choices") or ()), {})
    return "".join(str(delta.get(name) or "") for name in ("reasoning_content", "content"))


def _fill(result: TrialResult, row: RequestRow | None) -> None:
    """Set what the gateway has measured and charged; a call without a tenant or a pool has no row."""
    if row is None:
        return
    result.backend, result.queue_s, result.duration_s = row.backend, row.queue_s, row.age_s
    if row.queue_s is not None and row.prefill_s is not None and row.output_tokens:
        result.ttft_s = row.queue_s + row.prefill_s
    result.prompt_tokens, result.output_tokens = row.prompt_tokens, row.output_tokens
    result.cost, result.currency = row.cost, row.currency
