"""Port certificate: reloads a port's certificate when its files change, for new connections, without a restart.

Renewal writes two files one after the other, or replaces a directory, as Kubernetes does with a Secret. While the two
files do not match, the last valid pair stays in use.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from backends.tls import file_marks, server_context
from gateway.store.periodic import Periodic

LOOK_S: Final = 2.0  # as often as the configuration file (config/reloading.py)

log = logging.getLogger(__name__)


class Certificate:
    """The TLS certificate of a port, read again when its files change. `context` is for the listener. Mutable: new
    connections get the newest certificate while its `renewal` runs.
    """

    def __init__(self, cert_file: Path, key_file: Path, *, look_s: float = LOOK_S) -> None:
        """Raises ValueError where the files hold no certificate."""
        self._files = cert_file, key_file
        self.renewal = Periodic(self._look, look_s, "renew a certificate")
        """Looks for newer files."""
        self._seen = self._marks()
        self._newest = self.context = server_context(cert_file, key_file)
        # Called at every handshake, with or without a server name, so each connection gets one complete pair.
        self.context.sni_callback = self._choose

    async def _look(self) -> None:
        if (now := self._marks()) == self._seen:
            return
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
