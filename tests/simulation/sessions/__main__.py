"""Figures of agents in simulation: python -m tests.simulation.sessions [SCENE ...] [WAY ...], all scenes by default."""

import argparse

from tests.simulation.sessions.scenes import HEAD, SCENES, WAYS, play


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.sessions", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"scenes: {', '.join(SCENES)}; ways: {', '.join(WAYS)}"
    )
    names = parser.parse_args().names
    if unknown := set(names) - {*SCENES, *WAYS}:
        parser.error(f"no scene or way: {', '.join(sorted(unknown))}")
    scenes = [each for each in names if each in SCENES] or list(SCENES)
    ways = [each for each in names if each in WAYS] or ["direct", "off", "on", "told"]
    print(f"{'':32} {HEAD}")
    for scene in scenes:
        for way in ways:
            print(f"{scene:22} {way:9} {play(SCENES[scene], WAYS[way])}", flush=True)


if __name__ == "__main__":
    main()
