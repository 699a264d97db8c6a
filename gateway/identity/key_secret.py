"""Secret check: all gateways that share a state must check keys with the same secret.

A key is stored as its HMAC, so a gateway with another secret answers 401 to every existing key. The state holds a
fingerprint of the secret, and a gateway with another secret does not start. The fingerprint does not reveal the secret,
which has 256 random bits.
"""

import asyncio
import contextlib
import hmac
import logging
import time
from pathlib import Path

from gateway.config import Config
from gateway.store.assembly import make_tool_store
from gateway.store.base import Change, Store, StoreUnavailable, VersionConflict
from gateway.store.periodic import Periodic

KIND, NAME = "secrets", "api-keys"
ACTOR = "fairlead"
RETRY_S = 1.0  # how soon after it is back a Redis is checked that was unavailable at start
PURPOSE = b"fairlead: which secret are the HMACs of API keys made with?"

log = logging.getLogger(__name__)


class SecretMismatch(ValueError):  # noqa: N818 - named as what it finds
    """An error: the API keys in the state were made with another secret than the configured one."""


def fingerprint_of(secret: bytes) -> str:
    """The 64 hex digits that identify the secret."""
    return hmac.new(secret, PURPOSE, "sha256").hexdigest()


class FingerprintCheck:
    """A check that the gateway's secret is the one with which the API keys in its store were made: the store has a
    fingerprint of it. Call `start` and `stop`.
    """

    def __init__(self, store: Store, secret: bytes) -> None:
        self._store = store
        self._secret = secret
        self._later = Periodic(self._try_again, RETRY_S, "compare the secret of API keys")

    async def start(self) -> None:
        """Compare the fingerprints, or write one where there is none. Raises SecretMismatch. A store that is
        unavailable is checked once it is back: a mismatch is then an error in the log, because the gateway serves
        already.
        """
        if not await self._is_kept():
            self._later.start()

    async def stop(self) -> None:
        await self._later.stop()

    async def _try_again(self) -> None:
        try:
            is_kept = await self._is_kept()
        except SecretMismatch as error:
            log.error("%s", error)  # noqa: TRY400 - the traceback would not help
            is_kept = True
        if is_kept:
            self._later.finish()

    async def _is_kept(self) -> bool:
        """Whether the store now has the fingerprint of this secret. Raises SecretMismatch."""
        try:
            if await _fingerprint(self._store) is None:
                with contextlib.suppress(VersionConflict):  # another gateway wrote it first
                    await _keep(self._store, self._secret, expected=0)
            found = await _fingerprint(self._store)
        except StoreUnavailable:
            return False
        if found == fingerprint_of(self._secret):
            return True
        raise SecretMismatch(
            "the state was made with another secret than auth.secret or auth.secret_file gives, and no key in it would "
            "work: give every gateway that shares the state the same secret. To go on with this one and give up the "
            "keys: fairlead keys accept-secret"
        )


def accept(config: Config, config_file: Path | None) -> None:
    """Replace the fingerprint in the state by the fingerprint of the configured secret. Raises ValueError where there
    is no secret; StateFileError, StoreUnavailable.
    """
    secret = config.auth.secret_bytes()
    if secret is None:
        raise ValueError(f"there is no secret: auth.secret is not set, and there is no file {config.auth.secret_file}")
    store = make_tool_store(config.state, config_file)

    async def keep() -> None:
        await store.open()
        try:
            await _keep(store, secret, expected=None)
        finally:
            await store.close()

    asyncio.run(keep())


async def _fingerprint(store: Store) -> str | None:
    for document in (await store.news(0)).documents:
        if (document.kind, document.name) == (KIND, NAME) and document.body is not None:
            return str(document.body["fingerprint"])
    return None


async def _keep(store: Store, secret: bytes, *, expected: int | None) -> None:
    change = Change(KIND, NAME, {"fingerprint": fingerprint_of(secret)}, expected=expected)
    await store.commit([change], actor=ACTOR, at_s=time.time())
