"""RequestReader: what a client sends becomes requests, which wait for their answers.

httptools (llhttp) parses, strictly. Input that it accepts, but that another server might read differently, is refused
here. If the end of a message is in doubt, nothing more is parsed.

A head has HEADERS_MAX fields of HEAD_BYTES_MAX bytes, each line at most LINE_BYTES_MAX. While PIPELINED_MAX requests
wait, what was read is kept unparsed.
"""

import re
from collections.abc import Callable
from http import HTTPMethod
from typing import Final

import httptools

from gateway.api import errors
from gateway.api.errors import Problem
from gateway.api.headers import Headers
from gateway.http.request import ClientLink, HttpRequest
from gateway.http.response import Response

HEADERS_MAX: Final = 128
HEAD_BYTES_MAX = 64 << 10
LINE_BYTES_MAX = 32 << 10  # of a target or a field: four times what is usual, for tokens that name many groups
PIPELINED_MAX: Final = 32  # requests of a connection that wait, about
# Of what is parsed at once, except of a body whose length is known. No line of a head that came at once is too long.
PARSED_BYTES_MAX: Final = 4096
# The one offer of another protocol that is passed over while the connection goes on: Java's client makes it.
PASSED_OVER: Final = "h2c"

_HOST: Final = re.compile(r"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")  # RFC 3986, 3.2.2 and 3.2.3
_ORIGIN_FORM: Final = re.compile(r"/[!\"$-~]*")  # RFC 9112, 3.2.1: no fragment
_ABSOLUTE_FORM: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]+)((?:[/?][!\"$-~]*)?)")
# Servers differ in which one they believe where it comes twice.
_SINGLE: Final = frozenset(
    {
        "content-length", "content-location", "content-range", "content-type", "etag", "host", "max-forwards",
        "server", "transfer-encoding", "user-agent",
    }
)  # fmt: skip

# Names as clients write them: to look one up costs less than to make it.
_NAMES: Final = {
    written.encode(): name
    for name in (
        "accept", "accept-encoding", "accept-language", "authorization", "connection", "content-length",
        "content-type", "cookie", "expect", "host", "origin", "referer", "traceparent", "tracestate", "user-agent",
        "transfer-encoding", "x-api-key", "x-forwarded-for", "x-forwarded-proto", "x-real-ip", "x-request-id",
        "x-session-id", "x-stainless-arch", "x-stainless-async", "x-stainless-lang", "x-stainless-os",
        "x-stainless-package-version", "x-stainless-retry-count", "x-stainless-runtime",
        "x-stainless-runtime-version", "x-tenant-id",
    )
    for written in (name, name.title())
}  # fmt: skip
_METHODS: Final = {each.value.encode(): each.value for each in HTTPMethod}


class RequestReader:
    """The reader of the requests that a client sends on one connection, in their order. `waiting`: the requests that
    are not yet answered; if the client sent something that is no request, the last entry is the response to that.
    `is_in_head`: a part of a head has come. `receiving`: the request whose body is expected. `rest`: received bytes
    that are parsed later, when fewer requests wait. Once `is_over`, nothing more is parsed.
    """

    __slots__ = (
        "_fault", "_headers", "_is_resuming", "_link", "_offers", "_parser", "_refuse", "_seen",
        "_target", "_trailers", "_unframed_bytes", "is_in_head", "is_over", "receiving", "rest", "waiting",
    )  # fmt: skip

    def __init__(self, link: ClientLink, refuse: Callable[[Problem, str], Response]) -> None:
        self.waiting: list[HttpRequest | Response] = []
        self.receiving: HttpRequest | None = None
        self.rest: memoryview | None = None
        self.is_over = False
        self._link: ClientLink | None = link
        self._refuse = refuse  # makes the response to what is no request with this target, as far as known
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers = Headers()
        self._trailers = 0  # fields after the body
        self._seen: tuple[bytes, str | None, str] = (b"", None, "")  # the last target and Host, and what was asked for
        self.is_in_head = False
        self._is_resuming = False
        self._offers = False  # another protocol, in the request that is received
        self._unframed_bytes = 0  # of heads, trailers and sizes of chunks since the last byte of a body
        self._fault: Problem | None = None

    @property
    def has_enough(self) -> bool:
        """Whether what the client sends next has to wait for a handler."""
        return (
            self.rest is not None
            or len(self.waiting) >= PIPELINED_MAX
            or (self.receiving is not None and self.receiving.is_unread)
        )

    @property
    def is_unused(self) -> bool:
        """Whether no part of a request has come."""
        return not self._target and not self.is_in_head

    def feed(self, data: bytes) -> None:
        """Parse what was read, as far as few requests wait."""
        if len(data) <= PARSED_BYTES_MAX and self.rest is None:
            self._parse(data)
        else:
            self.rest = memoryview(data if self.rest is None else bytes(self.rest) + data)
            self.parse_rest()

    def parse_rest(self) -> None:
        """Parse what was read in pieces, so that few requests wait."""
        rest = self.rest
        while rest is not None and not self.is_over and len(self.waiting) < PIPELINED_MAX:
            size = PARSED_BYTES_MAX
            if (receiving := self.receiving) is not None and receiving.content_length is not None:
                size = max(size, receiving.content_length - receiving.received_bytes)
            self.rest = rest[size:] if size < len(rest) else None
            self._parse(rest[:size])
            rest = self.rest
        if self.is_over:
            self.rest = None

    def stop(self) -> None:
        """Parse no more, and drop what waits."""
        self.is_over = True
        self.waiting.clear()
        self.rest = self.receiving = self._parser = self._link = None  # the last two refer to this reader

    # Called by the parser. feed_data raises what is raised here as HttpParserError.

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = Headers()
        self._unframed_bytes = self._trailers = 0
        self.is_in_head = True

    def on_url(self, url: bytes) -> None:
        self._target += url
        if self._unframed_bytes and len(self._target) > LINE_BYTES_MAX:
            raise self._at_fault(errors.HEADER_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._unframed_bytes and len(name) + len(value) > LINE_BYTES_MAX:
            raise self._at_fault(errors.HEADER_TOO_LARGE)
        if not self.is_in_head:
            self._trailers += 1
            if self._trailers > HEADERS_MAX:
                raise self._at_fault(errors.HEADER_TOO_LARGE)
            return
        try:
            key = _NAMES[name]
        except KeyError:
            key = name.decode("latin-1").lower()
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("utf-8", "surrogateescape")
        if text[-1:] <= " ":
            if key == "transfer-encoding" and "\t" in text:  # llhttp takes it for another coding
                raise self._at_fault(errors.MALFORMED_HTTP)
            text = text.rstrip(" \t")
        if key in self._headers:
            self._headers.add(key, text)
        else:
            self._headers[key] = text

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        if self._is_resuming:
            return
        parser, link, headers, target = self._parser, self._link, self._headers, self._target
        assert parser is not None, "it calls"
        assert link is not None, "it has not been stopped"
        if len(headers) > HEADERS_MAX or (headers.again is not None and headers.number > HEADERS_MAX):
            raise self._at_fault(errors.HEADER_TOO_LARGE)
        method, version, host = parser.get_method(), parser.get_http_version(), headers.get("host")
        seen_target, seen_host, found = self._seen
        if seen_target != target or seen_host != host or version != "1.1":
            found = self._find_target(target, method, host, version)
        if "transfer-encoding" in headers or headers.again is not None:
            self._check_framing(headers, version)
        is_passed_over, self._offers = True, parser.should_upgrade()
        if self._offers:
            is_passed_over = method != b"CONNECT" and headers.get("upgrade", "").lower() == PASSED_OVER
        keeps = parser.should_keep_alive() and is_passed_over
        name = _METHODS.get(method) or method.decode()
        self.receiving = request = HttpRequest(link, name, found, headers, is_new=version == "1.1", keeps=keeps)
        self.waiting.append(request)

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._unframed_bytes = -size  # all of what is parsed now will be added
        if self.receiving is not None:
            self.receiving.arrived(body, size)

    def on_message_complete(self) -> None:
        request = self.receiving
        if request is None:
            return
        if self._offers and request.has_body and not self._is_resuming and request.method != "CONNECT":
            return  # llhttp does not read it: `_resume` does
        if self._trailers:  # dropped (RFC 9112, 7.1.2); a server that does not know trailers takes it for a request
            request.keeps = False
        self.receiving = None
        self._offers = self._is_resuming = False
        request.ended()
        if not request.keeps:
            self.is_over = True

    # Internal.

    def _parse(self, data: bytes | memoryview) -> None:
        while self._parser is not None and not self.is_over:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:  # the message is over where its head is
                data = data[offer.args[0] :]
                if self.receiving is not None:
                    self._resume(self.receiving)
                if len(data):
                    continue
            except httptools.HttpParserError:
                if not self.is_over:  # else it is what follows the last request
                    self._break(self._fault or errors.MALFORMED_HTTP)
            else:
                if self.is_in_head or self.receiving is not None:
                    self._unframed_bytes += len(data)
                    if self._unframed_bytes > HEAD_BYTES_MAX:
                        self._break(errors.HEADER_TOO_LARGE)
            return

    def _resume(self, request: HttpRequest) -> None:
        """Parse the body of a request with an offer of another protocol, which llhttp takes to be of that protocol."""
        self._is_resuming = True
        self._parser = httptools.HttpRequestParser(self)
        length = request.content_length
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self._parser.feed_data(f"POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode())

    def _find_target(self, target: bytes, method: bytes, host: str | None, version: str) -> str:
        """The path and query that are asked for. Raises ValueError where a server of this Host has no such target."""
        if version not in ("1.1", "1.0") or (host is None and version == "1.1") or not _HOST.fullmatch(host or ""):
            raise self._at_fault(errors.MALFORMED_HTTP)
        found = _path_and_query(target.decode("latin-1"), method, host or "")
        if found is None:
            raise self._at_fault(errors.MALFORMED_HTTP)
        if found.startswith("/"):  # whatever the method
            self._seen = (target, host, found)
        return found

    def _check_framing(self, headers: Headers, version: str) -> None:
        """Raises ValueError for a transfer coding other than chunked, or any in HTTP/1.0 (RFC 9112, 6.1), and for a
        field twice of which there may be one.
        """
        coding = headers.get("transfer-encoding")
        is_known = coding is None or (coding.lower() == "chunked" and version == "1.1")
        if not is_known or not _SINGLE.isdisjoint(headers.again or ()):
            raise self._at_fault(errors.MALFORMED_HTTP)

    def _at_fault(self, problem: Problem) -> ValueError:
        self._fault = problem
        return ValueError(problem.message)

    def _break(self, problem: Problem) -> None:
        """What was read is no request, or no body of one: parse no more."""
        self.is_over = True
        request, self.receiving = self.receiving, None
        if request is not None:
            request.broke()
        else:
            self.waiting.append(self._refuse(problem, self._target.decode("latin-1")))


def _path_and_query(target: str, method: bytes, host: str) -> str | None:
    """The path and query of a target; None where it is none that a server of this Host takes: another authority, where
    servers differ in which of them they believe (RFC 9112, 3.2.2), or a fragment.
    """
    if _ORIGIN_FORM.fullmatch(target):
        return target
    if method == b"CONNECT" or (target == "*" and method == b"OPTIONS"):
        return target if target.isascii() and target.isprintable() else None
    found = _ABSOLUTE_FORM.fullmatch(target)
    if found is None or found[1].lower() != host.lower():
        return None
    path = found[2]
    return path if path.startswith("/") else f"/{path}"
