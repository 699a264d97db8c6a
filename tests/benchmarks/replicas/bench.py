"""What breaks beside three replicas that share one order, and what their clients had of it: the table of failures.

    python tests/benchmarks/replicas/bench.py [EVENT ...]

For each event three `fairlead serve`, a real Redis and two embedded engines are started, twelve clients call again and
again, and it breaks (tests/integration/replicas/failures.py). Prints a line of figures per event.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

INTEGRATION = Path(__file__).resolve().parents[2] / "integration"
sys.path[:0] = [str(INTEGRATION), str(INTEGRATION / "replicas"), str(INTEGRATION.parents[1])]

from failures import EVENTS, run  # noqa: E402
from network import Network  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("events", nargs="*", metavar="EVENT", help=f"one of: {'; '.join(EVENTS)} (default: all)")
    for name in parser.parse_args().events or EVENTS:
        if EVENTS[name].has_network and not Network.is_possible():
            print(f"{name}: not run, network namespaces are not permitted here", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                figures, _ = asyncio.run(run(name, Path(folder)))
            except TimeoutError:
                print(f"{name}: not over in time", flush=True)
            else:
                print(f"{name}: {figures}", flush=True)


if __name__ == "__main__":
    main()
