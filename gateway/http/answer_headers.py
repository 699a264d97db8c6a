"""Response headers that the gateway adds: request id, rate limits, time in the queue, backend and model.

Rate limits are in OpenAI's headers, for tenants that have limits; resets are durations like "1m30s" or "250ms".
https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
"""

from math import ceil, isfinite
from typing import Final
from urllib.parse import quote

from gateway.http.response import SERVER
from gateway.observability.telemetry import CallTrace
from policies.types import RateLimits

REQUEST_ID_HEADER: Final = "x-request-id"
QUEUE_HEADER: Final = "x-fairlead-queue-ms"
BACKEND_HEADER: Final = "x-fairlead-backend"
RESUMABLE_HEADER: Final = "x-fairlead-resumable"
EXPECTED_HEADER: Final = "x-fairlead-expected-cached-tokens"
MODEL_HEADER: Final = "x-fairlead-model"
SAFE: Final = "!\"#$&'()*+,/:;<=>?@[\\]^`{|} "  # visible characters stand for themselves in a header, but for "%"
RESET_S_MAX: Final = 86_400.0


class AnswerHeaders:
    """The maker of the response headers that the gateway adds, such as the request id and the rate limits. Headers that
    reveal the operator's setup (backend, time in the queue) are off by default.
    """

    def __init__(self, *, show_queue_ms: bool = False, show_backend: bool = False) -> None:
        self._show_queue_ms = show_queue_ms
        self._show_backend = show_backend

    def of(self, trace: CallTrace) -> dict[str, str]:
        """The headers of a response that is sent now."""
        headers = {REQUEST_ID_HEADER: trace.request_id, **SERVER}
        if trace.cors:
            headers.update(trace.cors)
        if trace.rate_limits is not None:
            headers |= rate_limit_headers(trace.rate_limits())
        if self._show_queue_ms and trace.queued_s is not None and trace.dispatched_s is not None:
            headers[QUEUE_HEADER] = str(round((trace.dispatched_s - trace.queued_s) * 1000))
        if self._show_backend and trace.backend_id:
            headers[BACKEND_HEADER] = trace.backend_id
            if trace.expected_tokens:
                headers[EXPECTED_HEADER] = str(trace.expected_tokens)
            if trace.is_resumable is not None:
                headers[RESUMABLE_HEADER] = "yes" if trace.is_resumable else "no"
            if trace.alias is not None and trace.model is not None:
                headers[MODEL_HEADER] = quote(trace.model, safe=SAFE)
        return headers


def rate_limit_headers(limits: RateLimits) -> dict[str, str]:
    """The x-ratelimit headers, which count all replicas together."""
    headers = {}
    for kind, limit in limits.by_kind().items():
        headers[f"x-ratelimit-limit-{kind}"] = str(limit.limit)
        headers[f"x-ratelimit-remaining-{kind}"] = str(limit.remaining)
        headers[f"x-ratelimit-reset-{kind}"] = _duration(limit.reset_s)
    return headers


def _duration(seconds: float) -> str:
    """A duration as Go writes it: "0s", "250ms", "59.5s", "1m30s", "1h0m0s". At most RESET_S_MAX."""
    seconds = min(max(seconds, 0.0), RESET_S_MAX) if isfinite(seconds) else RESET_S_MAX
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms" if seconds else "0s"
    if seconds < 60:
        return f"{ceil(seconds * 1000) / 1000:g}s"
    minutes, rest = divmod(ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
