"""Configuration reload: reads the file again when it has changed, or on request, and applies it if it is valid.

A change is detected by the file's resolved path, inode, size and time, which also covers a ConfigMap, where Kubernetes
replaces a directory. The key file is watched too.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from backends.tls import Marks, file_marks
from gateway.config.config import Config
from gateway.config.doubts import doubts
from gateway.config.load import load_config
from gateway.config.problems import ConfigError

LOOK_S = 2.0
log = logging.getLogger(__name__)


class Reloading:
    """A watch on the configuration file of a gateway, which applies the file when it changes. Make it before the
    gateway reads the file's settings. `has_failed`: the newest content of the file was invalid, and was not applied.
    """

    def __init__(self, path: Path, config: Config, *, look_s: float = LOOK_S) -> None:
        self._path = path
        self._files = (path, config.auth.keys_file)
        self.has_failed = False
        self._look_s = look_s
        self._asked = asyncio.Event()
        self._seen = self._marks()  # before the gateway starts: the start takes time

    def ask(self) -> None:
        """Read the file now, whether or not it has changed (SIGHUP)."""
        self._asked.set()

    async def watch(self, apply: Callable[[Config], None]) -> None:
        """Reload on every change or request, until cancelled. `apply` is called with every new Config, and may reject
        it by ValueError.
        """
        while True:
            try:
                async with asyncio.timeout(self._look_s):
                    await self._asked.wait()
            except TimeoutError:
                if self._marks() == self._seen:
                    continue
            self._asked.clear()
            self._seen = self._marks()
            await self._read(apply)

    async def _read(self, apply: Callable[[Config], None]) -> None:
        self.has_failed = True
        try:
            config = await asyncio.to_thread(load_config, self._path)
            apply(config)
        except ConfigError as error:
            log.error("%s is not valid, and the last one that was stays in force:\n%s", self._path, error)  # noqa: TRY400
        except ValueError as error:
            log.error("%s is not put in force: %s", self._path, error)  # noqa: TRY400
        else:
            self.has_failed = False
            for doubt in doubts(config):
                log.warning("%s: %s", self._path, doubt)

    def _marks(self) -> Marks:
        return file_marks(*self._files)
