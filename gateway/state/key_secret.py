"""Do all gateways of one state check keys with the same secret?

A key is kept as its HMAC, so a gateway with another secret answers 401 to every key that was made before. The state
keeps a fingerprint of the secret: a gateway that has another secret does not start. A fingerprint tells nothing of the
secret, which has 256 random bits.
"""

import asyncio
import contextlib
import hmac
import logging
import time
from pathlib import Path

from gateway.config import Config
from gateway.state.assembly import make_tool_store
from gateway.store.base import Change, Store, StoreUnavailable, VersionConflict
from gateway.store.periodic import Periodic

KIND, NAME = "secrets", "api-keys"
ACTOR = "fairlead"
RETRY_S = 1.0  # a Redis that was away at the start is compared with as soon after it is back
PURPOSE = b"fairlead: which secret are the HMACs of API keys made with?"

log = logging.getLogger(__name__)


class SecretMismatch(ValueError):  # noqa: N818 - named as what it finds
    """The state holds keys that were made with another secret."""


def fingerprint_of(secret: bytes) -> str:
    """64 hex digits that are the same for the same secret alone."""
    return hmac.new(secret, PURPOSE, "sha256").hexdigest()


class FingerprintCheck:
    """Compares one gateway's secret with the fingerprint in its open store. `start` it, `stop` it."""

    def __init__(self, store: Store, secret: bytes) -> None:
        self._store = store
        self._secret = secret
        self._later = Periodic(self._try_again, RETRY_S, "compare the secret of API keys")

    async def start(self) -> None:
        """Compare, or keep the fingerprint where there is none. Raises SecretMismatch. A shared store that is away is
        compared with when it comes: a mismatch is then an error in the log, because the gateway serves already.
        """
        if not await self._is_kept():
            self._later.start()

    async def stop(self) -> None:
        await self._later.stop()

    async def _try_again(self) -> None:
        try:
            is_kept = await self._is_kept()
        except SecretMismatch as error:
            log.error("%s", error)  # noqa: TRY400 - where it was found does not matter
            is_kept = True
        if is_kept:
            self._later.finish()

    async def _is_kept(self) -> bool:
        """Whether the store has the fingerprint of this secret now. Raises SecretMismatch."""
        try:
            if await _fingerprint(self._store) is None:
                with contextlib.suppress(VersionConflict):  # another gateway was quicker
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
    """From now on the state of this configuration is of its secret. Raises ValueError where it has none,
    StateFileError, StoreUnavailable.
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
