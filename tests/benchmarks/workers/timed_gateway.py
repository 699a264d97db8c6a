"""The gateway's command line, which also measures how long requests wait for their dispatch (latency.py runs it).

The event loop's clock steps by a millisecond, so it is done here by perf_counter, around what enters a lease. At
SIGUSR1 a worker writes its waits since the last one, in us, to the folder of the environment variable WAITS.
"""

import json
import os
import signal
from pathlib import Path
from time import perf_counter

from gateway.cli import main
from gateway.scheduling.dispatcher import Lease

waits_us: list[float] = []
enter = Lease.__aenter__


async def timed_enter(lease: Lease) -> Lease:
    began = perf_counter()
    entered = await enter(lease)
    waits_us.append((perf_counter() - began) * 1e6)
    return entered


def write(*_: object) -> None:
    path = Path(os.environ["WAITS"]) / str(os.getpid())
    path.with_suffix(".part").write_text(json.dumps(waits_us))
    path.with_suffix(".part").rename(path)
    waits_us.clear()


Lease.__aenter__ = timed_enter  # type: ignore[method-assign]
signal.signal(signal.SIGUSR1, write)
main()
