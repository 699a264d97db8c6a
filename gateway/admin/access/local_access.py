"""LocalAccess: the gateway's side of local_socket.py. It is open while a gateway is tried out, and ends with it."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.admin.access.local_socket import ANSWER_S_MAX, FOLDER_MODE, SUFFIX, folders, is_private

LINE_BYTES_MAX: Final = 64  # of a question
SOCKET_MODE: Final = 0o600

log = logging.getLogger(__name__)


class LocalAccess:
    """The server of a Unix socket for commands of the user that runs the gateway. It gives them a key for the admin
    port, or a one-time link to its page. It is for a gateway without a configuration (config/trial.py). Create it on
    the loop that runs it; call `start` and `stop`.
    """

    def __init__(self, url: str, answers: Mapping[str, Callable[[], str]]) -> None:
        """`url` is the URL of the admin port; `answers` has, by question, a function that makes the answer."""
        self._url = url
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def start(self, port: int) -> bool:
        """Listen for this admin port; return whether there was a folder for it that only this user may enter."""
        for folder in folders():
            with suppress(OSError):
                folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                if not is_private(folder):
                    log.warning("%s is not this user's alone: it is not used", folder)
                    continue
                path = folder / f"{port}{SUFFIX}"
                # One that a killed gateway left is replaced: the port is this one's now.
                self._server = await asyncio.start_unix_server(self._answer, path, limit=LINE_BYTES_MAX)
                path.chmod(SOCKET_MODE)
                self._path = path
                return True
        return False

    async def stop(self) -> None:
        """Close the socket and remove it."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(TimeoutError, ValueError, OSError):
                async with asyncio.timeout(ANSWER_S_MAX):
                    question = (await reader.readline()).decode("ascii").strip()
                    if question in self._answers:
                        told = {"url": self._url, "secret": self._answers[question]()}
                        writer.write(json.dumps(told).encode() + b"\n")
                        await writer.drain()
        finally:
            writer.close()
