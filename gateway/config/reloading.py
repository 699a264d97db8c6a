"""Reading the file again when it has changed, or when somebody says so: a valid one is passed on, another is not.

A change is seen by asking what the file is (where it leads to, its inode, size and time), as for a ConfigMap, which
Kubernetes puts another directory under. What the file names is read with it, so a changed file of keys is news too.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from gateway.config.config import Config
from gateway.config.files import Marks, marks
from gateway.config.load import load_config
from gateway.config.problems import ConfigError

LOOK_S = 2.0
log = logging.getLogger(__name__)


class Reloading:
    """Watches the file of a running gateway. `apply` is given every new Config; ValueError refuses it."""

    def __init__(self, path: Path, config: Config, apply: Callable[[Config], None], *, look_s: float = LOOK_S) -> None:
        self._path = path
        self._files = (path, config.auth.keys_file)
        self._apply = apply
        self._look_s = look_s
        self._asked = asyncio.Event()
        self._seen = self._marks()  # before the gateway starts, which takes its time

    def ask(self) -> None:
        """Read it now, changed or not (SIGHUP)."""
        self._asked.set()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._look_s):
                    await self._asked.wait()
            except TimeoutError:
                if self._marks() == self._seen:
                    continue
            self._asked.clear()
            self._seen = self._marks()
            await self._read()

    async def _read(self) -> None:
        try:
            self._apply(await asyncio.to_thread(load_config, self._path))
        except ConfigError as error:
            log.error("%s is not valid, and the last one that was stays in force:\n%s", self._path, error)  # noqa: TRY400
        except ValueError as error:
            log.error("%s is not put in force: %s", self._path, error)  # noqa: TRY400

    def _marks(self) -> Marks:
        return marks(*self._files)
