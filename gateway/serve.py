"""serve: what `fairlead serve` runs: one process, one of several replicas, or several workers. No module imports it."""

import gc
import logging
from pathlib import Path

import uvloop

from gateway.app import Gateway
from gateway.config import Config
from gateway.observability.logs import configure_logging
from gateway.process import serve_one
from gateway.store.assembly import make_store

log = logging.getLogger(__name__)


def serve(config: Config, config_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT. SIGTERM drains first; a second SIGTERM ends the drain. State is stored next to the
    configuration file unless that file sets another place. Raises what `Gateway.start` raises.
    """
    gc.freeze()  # modules stay, so no collection looks at them
    configure_logging(config.log.level, config.log.format)
    log.info("the configuration is %s", config_file or "the environment and the defaults: no file")
    if config.workers != 1:
        from gateway.workers_app import serve_workers  # noqa: PLC0415 - only where it is set

        gc.enable()
        serve_workers(config, config_file)
        return
    uvloop.run(serve_one(config, config_file, make_gateway))


def make_gateway(config: Config, config_file: Path | None) -> Gateway:
    """A gateway of one process: alone, or one of several replicas. Raises ValueError, OSError."""
    store = make_store(config.state, config_file if config.keeps_state else None)
    if config.is_clustered:
        from gateway.replica_app import make_replica  # noqa: PLC0415 - only with a shared Redis

        return make_replica(config, store)
    return Gateway(config, store=store)
