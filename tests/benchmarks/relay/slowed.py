"""fairlead that needs a given share more CPU: the mutant that `make bench-check` has to notice.

    python slowed.py SHARE ARGUMENTS OF fairlead

After each read of a backend's bytes the process burns SHARE of the CPU time that it used since the read before.
"""

import sys
import time

from backends.connection import Connection
from gateway.cli import main


def slow_down(share: float) -> None:
    """Have each read of a backend's bytes burn `share` of the CPU time used since the one before."""
    receive = Connection.data_received
    rested_ns = time.process_time_ns()

    def slowed(connection: Connection, data: bytes) -> None:
        nonlocal rested_ns
        receive(connection, data)
        used_ns = time.process_time_ns()
        until_ns = used_ns + share * (used_ns - rested_ns)
        while (rested_ns := time.process_time_ns()) < until_ns:
            pass

    Connection.data_received = slowed  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(float(sys.argv.pop(1)))
    sys.argv[0] = "fairlead"
    main()
