"""Webhook: sends a document to a URL, signed as the Standard Webhooks specification says.

    webhook-id: budget_5f0c...
    webhook-timestamp: 1795176000
    webhook-signature: v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=

The signature is HMAC-SHA256 over "ID.TIMESTAMP.BODY", in base64; with several secrets there is one signature per
secret, separated by spaces. A receiver rejects an old timestamp, and an id that it has seen.

The receiver is not trusted: redirects are not followed, its answer is not read, and addresses of metadata services are
refused, whatever name they are behind.
"""

import base64
import hmac
import ssl
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from gateway.config.budgets import ANYWHERE

TIMEOUT_S: Final = 10.0


class WebhookFailed(Exception):  # noqa: N818 - named as what happened
    """An error: the webhook did not accept the sent document, or its answer is missing."""


class Webhook:
    """A client of the operator's webhook: it sends JSON documents to one URL. Call `close` at the end."""

    def __init__(self, url: str, secrets: Sequence[bytes], *, tls: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._secrets = tuple(secrets)
        connector = aiohttp.TCPConnector(resolver=_CheckedResolver(), ssl=True if tls is None else tls)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    async def send(self, id_: str, document: dict[str, Any], now_s: float) -> None:
        """Send a document under this id. Raises WebhookFailed. `now_s` is in seconds since 1970."""
        body = orjson.dumps(document)
        headers = {"content-type": "application/json", **signature_headers(id_, body, self._secrets, now_s)}
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                status = answer.status
                answer.close()  # its body is not of interest
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise WebhookFailed(str(error) or type(error).__name__) from error
        if not 200 <= status < 300:
            raise WebhookFailed(f"it answered {status}")

    async def close(self) -> None:
        await self._session.close()


def signature_headers(id_: str, body: bytes, secrets: Sequence[bytes], now_s: float) -> dict[str, str]:
    """The headers that prove the sender of this body, and the time."""
    timestamp = str(int(now_s))
    signed = b"%s.%s.%s" % (id_.encode(), timestamp.encode(), body)
    signatures = [base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": id_,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


class _CheckedResolver(AbstractResolver):
    """A resolver of names to allowed addresses; others are an error."""

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for each in found:
            ANYWHERE.check(each["host"])
        return found

    async def close(self) -> None:
        await self._resolver.close()
