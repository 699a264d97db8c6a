"""serve_workers: a gateway of several workers: a parent process, worker 0, which leads, and its followers.

Each worker is a gateway with its part in the shared order (gateway/shared_order/member_order.py), as the parent has
appointed it (gateway/workers/appointed.py).
"""

import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvloop

from gateway.app import Gateway, open_gateway
from gateway.config import Config, ConfigError, load_config
from gateway.ports.listener import BACKLOG
from gateway.shared_order.leader_store import LeaderStore
from gateway.shared_order.member_order import MemberOrder
from gateway.store.assembly import make_store
from gateway.store.base import StateFileError, StoreUnavailable
from gateway.workers.appointed import Appointed
from gateway.workers.parent import EXIT_INVALID, ParentProcess, count_of, listening_socket
from gateway.workers.place import WorkerPlace


class ServeOne(Protocol):
    """The interface of a function that runs a gateway in this process until a signal. `make` makes the gateway."""

    def __call__(
        self,
        config: Config,
        config_file: Path | None,
        make: Callable[[Config, Path | None], Awaitable[Gateway]],
        *,
        greets: bool,
    ) -> Coroutine[Any, Any, None]: ...


def serve_workers(config: Config, config_file: Path | None, serve_one: ServeOne) -> None:
    """Serve with `config.workers` processes, each by `serve_one`, until SIGTERM or SIGINT. Raises OSError where the
    port is taken, SystemExit where workers cannot serve.
    """
    listen = config.listen
    with listening_socket(listen.host, listen.port, BACKLOG) as listening:
        run = partial(run_worker, config=config, config_file=config_file, serve_one=serve_one)
        status = ParentProcess(count_of(config.workers), run, listening).run()
    if status:
        sys.exit(status)


def run_worker(place: WorkerPlace, *, config: Config, config_file: Path | None, serve_one: ServeOne) -> int:
    """Run this worker until it ends; returns its exit status."""
    if place.epoch > 1 or place.name != f"w{place.index}-{place.index + 1}":  # started anew: the file may have changed
        config = _present(config, config_file)
    try:
        uvloop.run(serve_one(config, config_file, partial(_open_worker, place), greets=place.name == "w0-1"))
    except (OSError, ValueError, StateFileError, StoreUnavailable) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_INVALID if place.is_leading else 1
    return 0


async def _open_worker(worker: WorkerPlace, config: Config, config_file: Path | None) -> Gateway:
    kept_beside = config_file if config.keeps_state else None
    store = make_store(config.state, kept_beside) if worker.is_leading else None
    enter = partial(Appointed, worker=worker, config=config, store=store)
    order = MemberOrder(config, worker.place(), enter)
    return await open_gateway(config, LeaderStore(order.others) if store is None else store, order=order)


def _present(config: Config, config_file: Path | None) -> Config:
    """The file as it is now, if it is valid. What needs a new start of all stays."""
    if config_file is None:
        return config
    try:
        present = load_config(config_file)
    except ConfigError:
        return config
    return present.model_copy(update={"listen": config.listen, "workers": config.workers})
