"""python -m tests.simulation.cluster --seeds 10000: run so many clusters, or one again with --seed N."""

import argparse
import sys
import time
import traceback

from tests.simulation.cluster.scenes import interrupted_scene, parted_scene, scene


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.cluster", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone, with its traceback")
    parser.add_argument("--cuts", action="store_true", help="with answers that are cut and continued")
    parser.add_argument("--parts", action="store_true", help="with members that are parted in two")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else [given.seed]
    of_kind = interrupted_scene if given.cuts else parted_scene if given.parts else scene
    failed, began, requests, simulated = [], time.process_time(), 0, 0.0
    for seed in seeds:
        try:
            world = of_kind(seed)
        except Exception as error:  # noqa: BLE001 - a judge raises, and so may what it judges
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}")
            if given.seed is not None:
                traceback.print_exc()
        else:
            requests += len(world.clients)
            simulated += world.now
    spent = time.process_time() - began
    print(
        f"{len(seeds)} seeds, {len(failed)} failed {failed[:20]}; {requests} requests, "
        f"{simulated / 3600:.2f} simulated hours, {spent:.0f} s of CPU"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
