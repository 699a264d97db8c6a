"""CallMiddleware: gives every call a request id, exactly one response and one log line, however the call ends.

Handlers raise an error for calls that they cannot answer: ProblemError (the gateway rejects the call), Rejected (the
scheduler does), UpstreamError (the backend failed). The middleware turns each into a response in the format of the
called API.
"""

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from backends.upstream import UpstreamError, UpstreamSilent
from gateway.api import errors
from gateway.api.endpoints import Endpoint
from gateway.api.errors import Problem, ProblemError
from gateway.api.trusted_hops import TrustedHops
from gateway.http.answer_headers import AnswerHeaders
from gateway.http.cors import Cors
from gateway.http.event_stream import end_open_stream
from gateway.http.rejection_turns import RejectionTurns
from gateway.http.request import HttpRequest
from gateway.http.request_ids import RequestIds
from gateway.http.response import EventStream, Response, to_response
from gateway.observability.telemetry import CallTrace, Telemetry
from gateway.scheduling.dispatcher import Rejected
from policies.types import Outcome

DISCONNECTED_STATUS = 499  # of a call whose client disconnected; nginx's, for the log: it is never sent

# A handler: answers a call at this endpoint, or raises ProblemError, Rejected or UpstreamError.
Run = Callable[[HttpRequest, Endpoint, CallTrace], Coroutine[Any, Any, Response | EventStream]]


class CallMiddleware:
    """The middleware around all handlers of logged calls: it gives each a request id, one response, one log line."""

    def __init__(
        self, *, names: RequestIds, hops: TrustedHops, headers: AnswerHeaders, cors: Cors, telemetry: Telemetry
    ) -> None:
        self._names = names
        self._hops = hops
        self._headers = headers
        self._cors = cors
        self._telemetry = telemetry
        self._rejection_turns = RejectionTurns()

    async def answer(self, endpoint: Endpoint, run: Run, request: HttpRequest) -> Response | EventStream:
        """Run the handler and return its response, or the response for the problem that it raised. A disconnect of the
        client, and a bug, are logged and raised again.
        """
        client = self._hops.client_address(request.headers, request.connection.remote)
        trace = CallTrace(endpoint.path, request_id=self._names.take(request.headers), client=client)
        if "origin" in request.headers:
            trace.cors = self._cors.headers(request.headers)
        if self._telemetry.tracer is not None:
            self._telemetry.tracer.begin(trace, request.method, request.headers)
        try:
            response = await run(request, endpoint, trace)
        except (ProblemError, Rejected, UpstreamError) as error:
            problem, trace.reason = _problem(error)
            error.with_traceback(None)  # its frames hold the body
            response = await self._own(request, problem, endpoint, trace)
        except asyncio.CancelledError:  # the client disconnected
            trace.status, trace.outcome = DISCONNECTED_STATUS, trace.outcome or Outcome.CLIENT_DISCONNECTED
            trace.reason = request.connection.cut_reason or trace.reason
            raise
        except Exception:  # a bug in the gateway: the server answers 500
            trace.status = errors.INTERNAL.status
            request.request_id = trace.request_id
            raise
        else:
            trace.status = response.status
            if request.heartbeat is not None:
                response = request.heartbeat.answered(response)
        finally:
            if request.heartbeat is not None:
                request.heartbeat.stop()
            self._names.free(trace.request_id)
            self._telemetry.ended(trace)
        return response

    async def _own(
        self, request: HttpRequest, problem: Problem, endpoint: Endpoint, trace: CallTrace
    ) -> Response | EventStream:
        trace.status = problem.status
        if problem.status == HTTPStatus.TOO_MANY_REQUESTS:
            await self._rejection_turns.wait(trace.tenant_id or "")
        if request.heartbeat is not None or request.open_stream is not None:
            error = errors.error_object(problem, endpoint.api)
            if (begun := end_open_stream(request, endpoint.answer, problem.message, error)) is not None:
                if request.open_stream is not None:
                    trace.status = begun.status  # the client has a part of the answer
                return begun
        return to_response(errors.write_answer(problem, endpoint.api), **self._headers.of(trace))


def _problem(error: ProblemError | Rejected | UpstreamError) -> tuple[Problem, str | None]:
    """The problem to send to the client, and the reason for the log."""
    match error:
        case ProblemError():
            return error.problem, error.reason
        case Rejected():
            return errors.problem_of(error.reason, error.retry_after_s, error.limit), error.reason
        case UpstreamSilent():
            return errors.BACKEND_TIMEOUT, str(error)
    return errors.BACKEND_FAILED, str(error)
