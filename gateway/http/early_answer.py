"""Refusals as bytes, for requests that are answered as soon as they are read.

aiohttp's way to an answer, by two tasks, a request and a response, costs several times what it costs to read a request:
a gateway that is short of CPU would spend it on refusing. So all but the name of a refusal is made once a second.
"""

import math
from http import HTTPStatus

from aiohttp import hdrs
from aiohttp.helpers import rfc822_formatted_time

from gateway.api import errors
from gateway.api.errors import Api
from policies.types import Reason


class EarlyAnswers:
    """Whole answers that say "not now". Mutable."""

    def __init__(self, reason: Reason) -> None:
        self._reason = reason
        self._date = ""
        self._made: dict[tuple[Api, int, bool], tuple[bytes, bytes]] = {}  # what stands before and behind the name

    def of(self, api: Api, retry_after_s: float, request_id: str, *, closes: bool) -> bytes:
        """Head and body, in the API's shape; where it `closes`, the connection ends behind it."""
        date = rfc822_formatted_time()
        if date != self._date:
            self._date = date
            self._made.clear()
        key = api, math.ceil(retry_after_s), closes
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(*key)
        return b"%b%b%b" % (made[0], request_id.encode(), made[1])

    def _make(self, api: Api, retry_after_s: int, closes: bool) -> tuple[bytes, bytes]:  # noqa: FBT001 - of the key
        answer = errors.answer(errors.refused(self._reason, retry_after_s), api)
        status = HTTPStatus(answer.status)
        fields: dict[str, str] = {hdrs.CONTENT_TYPE: "application/json", hdrs.SERVER: "fairlead", **answer.headers}
        fields |= {hdrs.CONTENT_LENGTH: str(len(answer.body)), hdrs.DATE: self._date}
        if closes:
            fields[hdrs.CONNECTION] = "close"
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        begin = f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}x-request-id: ".encode()
        return begin, b"\r\n\r\n" + answer.body
