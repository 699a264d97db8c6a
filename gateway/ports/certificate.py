"""Port certificate: reloads a port's certificate when its files change, for new connections, without a restart.

Renewal writes two files one after the other, or replaces a directory, as Kubernetes does with a Secret. While the two
files do not match, the last valid pair stays in use.
"""

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path
from typing import Final

from backends.tls import file_marks, server_context

LOOK_S: Final = 2.0  # as often as the configuration file (config/reloading.py)

log = logging.getLogger(__name__)


class Certificate:
    """The certificate of a port; `context` is for the listener. Mutable: new connections get the newest certificate
    while it is watched.
    """

    def __init__(self, cert_file: Path, key_file: Path, *, look_s: float = LOOK_S) -> None:
        """Raises ValueError where the files hold no certificate."""
        self._files = cert_file, key_file
        self._look_s = look_s
        self._seen = self._marks()
        self._newest = self.context = server_context(cert_file, key_file)
        # Called at every handshake, with or without a server name, so each connection gets one complete pair.
        self.context.sni_callback = self._choose
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch the files."""
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if (now := self._marks()) == self._seen:
                continue
            self._seen = now
            try:
                self._newest = await asyncio.to_thread(server_context, *self._files)
            except ValueError as error:
                log.warning("the last certificate stays: %s", error)
            else:
                log.info("the certificate in %s is in use", self._files[0])

    def _choose(self, connection: "ssl.SSLObject | ssl.SSLSocket", _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _marks(self) -> object:
        return file_marks(*self._files)
