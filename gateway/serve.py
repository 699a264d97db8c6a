"""serve: the code of `fairlead serve`: one process, one of several replicas, or several workers. No module imports it.

`serve_one` runs one process from its start to its end, with its signals, garbage collection and output. The first
SIGTERM drains it, a second SIGTERM or a SIGINT stops it at once, SIGHUP reads the configuration file again.
"""

import asyncio
import ctypes
import gc
import logging
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvloop

from gateway.app import Gateway, open_gateway
from gateway.config import Config
from gateway.observability.logs import configure_logging
from gateway.store.assembly import make_store

# A leader that takes over 100,000 requests makes 400,000 objects that stay. A collection of those that survived one
# looks at 20,000 of them, which takes 10 ms; one of all objects comes once in 20 million.
GC_THRESHOLDS: Final = (5_000, 3, 1_300)
M_MMAP_THRESHOLD: Final = -3  # of mallopt(3)
LARGE_BYTES: Final = 1 << 20  # larger blocks are mapped, which costs a page fault for every 4 KiB

log = logging.getLogger(__name__)


def serve(config: Config, config_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT. SIGTERM drains first; a second SIGTERM ends the drain. State is stored next to the
    configuration file unless that file sets another place. Raises the errors of `Gateway.start`.
    """
    gc.freeze()  # modules stay, so no collection looks at them
    configure_logging(config.log.level, config.log.format)
    log.info("the configuration is %s", config_file or "the environment and the defaults: no file")
    if config.workers != 1:
        from gateway.serve_workers import serve_workers  # noqa: PLC0415 - only where it is set

        gc.enable()
        serve_workers(config, config_file, serve_one)
        return
    uvloop.run(serve_one(config, config_file, open_one))


async def open_one(config: Config, config_file: Path | None) -> Gateway:
    """A gateway of one process: alone, or one of several replicas. Raises ValueError, OSError."""
    store = make_store(config.state, config_file if config.keeps_state else None)
    if config.cluster_redis is not None:
        from gateway.replicas import open_replica  # noqa: PLC0415 - only with a shared Redis

        return await open_replica(config, config.cluster_redis, store)
    return await open_gateway(config, store)


async def serve_one(
    config: Config,
    config_file: Path | None,
    make: Callable[[Config, Path | None], Awaitable[Gateway]],
    *,
    greets: bool = True,
) -> None:
    """Serve with the gateway that `make` makes, in this process. Raises the errors of `make` and `Gateway.start`."""
    loop = asyncio.get_running_loop()
    reloading = None
    if config_file is not None:
        from gateway.config.reloading import Reloading  # noqa: PLC0415 - only where there is a file

        reloading = Reloading(config_file, config)
    terminated, interrupted = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, _terminate, terminated, interrupted)
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    if reloading is not None:
        loop.add_signal_handler(signal.SIGHUP, reloading.ask)
    gateway = await make(config, config_file)
    try:
        url = await gateway.start()
        _give_memory_back()
        _spare_collections()
        if greets:
            _greet(config, config_file, url, gateway)
        interruption = asyncio.ensure_future(interrupted.wait())
        termination = asyncio.ensure_future(_drained(terminated, gateway))
        watching = [] if reloading is None else [asyncio.ensure_future(gateway.watch(reloading))]
        await asyncio.wait((interruption, termination), return_when=asyncio.FIRST_COMPLETED)
        for task in (*watching, interruption, termination):
            task.cancel()
    finally:
        await gateway.stop()


def _terminate(terminated: asyncio.Event, interrupted: asyncio.Event) -> None:
    """On SIGTERM: drain; on a second SIGTERM: stop without waiting for running calls."""
    (interrupted if terminated.is_set() else terminated).set()


async def _drained(terminated: asyncio.Event, gateway: Gateway) -> None:
    await terminated.wait()
    await gateway.drain()


def _give_memory_back() -> None:
    """Have glibc return the memory of large bodies to the system as soon as they are freed.

    By default glibc raises its threshold when it frees a large block, and takes the next one of that size from the
    heap, where newer blocks keep it resident (mallopt(3), M_MMAP_THRESHOLD). After a few answers of 20 MB the process
    holds twice the bytes that wait.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def _spare_collections() -> None:
    """Exempt the objects made at the start, which stay, from garbage collection, and collect less often than every 700
    objects.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)


def _greet(config: Config, config_file: Path | None, url: str, gateway: Gateway) -> None:
    """Print the URLs: with examples to try on stderr, or as one log line where the log format is JSON."""
    admin = None if gateway.admin_url is None else f"The admin port is {gateway.admin_url}."
    if config.log.format == "json":
        log.info("fairlead serves %s. %s", url, admin or "There is no admin port.")
        return
    models = [card.id for card in gateway.backends.catalog.models()]
    key_for = next(iter(config.tenants), "TENANT") if config.auth.mode == "keys" else None
    sys.stderr.write(greeting(url, models, key_for=key_for, config_file=config_file))
    if config.is_trial:
        is_on_path = shutil.which("fairlead") or Path(sys.argv[0]).name != "fairlead"
        command = "fairlead" if is_on_path else shlex.quote(sys.argv[0])  # `make run` starts one that is not
        sys.stderr.write(
            f"page: {gateway.page_link()} (opens once, within ten minutes)\n"
            f"A new link: {command} admin link. The same in a terminal: {command} top\n"
        )
    elif admin is not None:
        sys.stderr.write(f"{admin} Try it: fairlead admin state\n")
    if gateway.metrics_url is not None:
        sys.stderr.write(f"Metrics are at {gateway.metrics_url}, for every client that can reach that port.\n")
    sys.stderr.flush()


def greeting(url: str, models: list[str], *, key_for: str | None = None, config_file: Path | None = None) -> str:
    """The text for the terminal after the start: two examples, for curl and for Python. `key_for`: they first make a
    key for this tenant; None: any key is accepted.
    """
    if not models:
        return f"fairlead serves {url}. No backend has answered yet.\n"
    model = models[0]
    messages = '[{"role": "user", "content": "Hello"}]'
    first, header, api_key = "", "", '"alice"'
    if key_for is not None:
        option = "" if config_file is None else f" --config {shlex.quote(str(config_file))}"
        first = f"export FAIRLEAD_KEY=$(fairlead keys new {shlex.quote(key_for)}{option})\n"
        header, api_key = ' -H "Authorization: Bearer $FAIRLEAD_KEY"', '__import__("os").environ["FAIRLEAD_KEY"]'
    return f"""fairlead serves {url}. Try it:

{first}curl -N {url}/v1/chat/completions -H 'Content-Type: application/json'{header} \\
  -d '{{"model": "{model}", "stream": true, "max_tokens": 32, "messages": {messages}}}'

from openai import OpenAI
chat = OpenAI(base_url="{url}/v1", api_key={api_key}).chat.completions
print(chat.create(model="{model}", max_tokens=32, messages={messages}))
"""
