"""Figures of agents in simulation: python -m tests.simulation.sessions [SCENE ...] [WAY ...], all scenes by default."""

import sys

from tests.simulation.sessions.scenes import HEAD, SCENES, WAYS, play


def main() -> None:
    scenes = [each for each in sys.argv[1:] if each in SCENES] or list(SCENES)
    ways = [each for each in sys.argv[1:] if each in WAYS] or ["direct", "off", "on", "told"]
    print(f"{'':32} {HEAD}")
    for scene in scenes:
        for way in ways:
            print(f"{scene:22} {way:9} {play(SCENES[scene], WAYS[way])}", flush=True)


if __name__ == "__main__":
    main()
