"""Every call gets a name, exactly one answer, and a line in the log, whatever becomes of it.

What answers a call raises what it cannot say itself: a refusal of the gateway (Refused), of the scheduler (Rejected),
a failure of a backend (UpstreamError). Here they become answers in the shape of the API that was called.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from backends.upstream import UpstreamError, UpstreamSilent
from gateway.api import errors
from gateway.api.endpoints import Endpoint
from gateway.api.errors import Problem
from gateway.http.answer_headers import AnswerHeaders
from gateway.http.cors import Cors
from gateway.http.names import RequestNames
from gateway.http.server import REQUEST_ID, to_response
from gateway.http.stall import StallingConnection
from gateway.intake.reception import Refused
from gateway.observability.telemetry import CallTrace, Telemetry
from gateway.scheduling.dispatcher import Rejected
from policies.types import Outcome

CLIENT_LEFT_STATUS = 499  # nginx's, for the log: nobody receives it

# Answers a call at this endpoint, or raises why not.
Run = Callable[[web.BaseRequest, Endpoint, CallTrace], Awaitable[web.StreamResponse]]


class Answering:
    """Answers calls that are logged."""

    def __init__(self, *, names: RequestNames, headers: AnswerHeaders, cors: Cors, telemetry: Telemetry) -> None:
        self._names = names
        self._headers = headers
        self._cors = cors
        self._telemetry = telemetry

    async def answer(self, request: web.BaseRequest, endpoint: Endpoint, run: Run) -> web.StreamResponse:
        trace = CallTrace(endpoint.path, request_id=self._names.take(request.headers))
        if hdrs.ORIGIN in request.headers:
            trace.cors = self._cors.headers(request.headers)
        self._telemetry.begun(trace, request.method, request.headers)
        try:
            response = await run(request, endpoint, trace)
        except Refused as refused:
            trace.reason = refused.reason
            response = self._own(refused.problem, endpoint, trace)
        except Rejected as rejected:
            trace.reason = rejected.reason
            response = self._own(
                errors.refused(rejected.reason, rejected.retry_after_s, rejected.limit), endpoint, trace
            )
        except UpstreamError as error:
            trace.reason = str(error)
            problem = errors.BACKEND_TIMEOUT if isinstance(error, UpstreamSilent) else errors.BACKEND_FAILED
            response = self._own(problem, endpoint, trace)
        except asyncio.CancelledError:  # the client left
            trace.status, trace.outcome = CLIENT_LEFT_STATUS, trace.outcome or Outcome.CLIENT_GONE
            if isinstance(request.protocol, StallingConnection):
                trace.reason = request.protocol.cut_reason or trace.reason
            raise
        except Exception:  # a bug of ours: the server answers it
            trace.status = errors.INTERNAL.status
            request[REQUEST_ID] = trace.request_id
            raise
        else:
            trace.status = response.status
        finally:
            self._names.free(trace.request_id)
            self._telemetry.ended(trace)
        return response

    def _own(self, problem: Problem, endpoint: Endpoint, trace: CallTrace) -> web.Response:
        trace.status = problem.status
        return to_response(errors.answer(problem, endpoint.api), **self._headers.of(trace, problem.limit))
