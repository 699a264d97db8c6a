"""Compiled policies decide as their sources do. A course of random facts is recorded of compiled ones, for each order
of requests, and replayed in a process that imports the sources beside them.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from policies import scheduler
from policies.capacity.backend import KV_RULES
from policies.fairness import FAIRNESS
from policies.placement import LATE_PLACEMENT
from policies.scheduler import Scheduler
from policies.step_time.model import StepTime, StepTimeModel
from policies.types import BackendLoad, Dispatch, KeyLimits, Outcome, Reject, Request, SloEnvelope, Tenant, Tier, Usage
from tests.simulation.recording import Recorder, read_from, replay, write_to

ROOT = Path(__file__).resolve().parents[3]
STEPS = 400
SOURCES = """
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
root, folder = sys.argv[1:]
def sources(path):
    if not path.startswith(root + "/policies"):
        raise ImportError
    return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))
sys.path_hooks.insert(0, sources)
sys.path[:0] = [root, root + "/tests/unit/policies"]
from test_compiled_decisions import scheduler, replayed
assert scheduler.__file__.endswith(".py")
print(replayed(folder), end="")
"""
LEARNT = StepTime(StepTimeModel(0.01, 1e-4, 1e-7, 1e-3), error_ratio=0.05, is_sure=True)
LOADS = [
    BackendLoad("large", requests_running_max=16, kv_tokens_max=4_000, kv_block_tokens=16),
    BackendLoad("small", requests_running_max=3, kv_tokens_max=700, kv_block_tokens=16),
    BackendLoad("learnt", requests_running_max=8, kv_tokens_max=2_000, step_tokens_max=256, step_time=LEARNT),
]


def make(fairness: str) -> Scheduler:
    """A Scheduler with this order; KV rules and placements take turns with the orders."""
    number = sorted(FAIRNESS).index(fairness)
    keys = {"k": KeyLimits(in_flight_max=1, requests_per_minute_max=90)}
    return Scheduler(
        tenants=[Tenant("A", keys=keys), Tenant("B", weight=3.3), Tenant("C", tier_id="gold", in_flight_max=4)],
        tiers=[Tier("default"), Tier("gold", weight=2.0, reserve_ratio=0.2, rejects_misses=True)],
        fairness=FAIRNESS[fairness],
        kv_rule=sorted(KV_RULES)[number % len(KV_RULES)],
        placement=LATE_PLACEMENT[sorted(LATE_PLACEMENT)[number % len(LATE_PLACEMENT)]](),
        wait_s_max=20.0,
    )


def record(folder: Path, fairness: str) -> int:
    """Records a course of facts and decisions, and returns how many requests were sent."""
    random, now, made, sent = Random(fairness), 0.0, 0, 0
    waiting, running, produced = {}, {}, Counter()
    with (folder / fairness).open("wb") as sink:
        recorder = Recorder(make(fairness), write_to(sink))
        for _ in range(STEPS):
            now += random.choice([0.0, 0.01, 0.3])
            if made % 20 == 0:
                recorder.load_changed(LOADS[: random.choice([1, 2, 3, 3])], now)
            for _ in range(random.choice([0, 1, 4])):
                made += 1
                waiting[f"r{made}"] = Request(
                    f"r{made}", random.choice("ABC"), "m", now, random.randrange(1, 300), random.randrange(1, 200),
                    choices=random.choice([1, 1, 2]), prefix=tuple(range(random.choice([0, 2]))),
                    prefix_block_tokens=16.0, key_id=random.choice(["", "k"]), is_resumable=made % 2 == 0,
                    envelope=random.choice([None, SloEnvelope(2.0, 0.1)]), program_id=random.choice([None, "p"]),
                )  # fmt: skip
                recorder.submit(waiting[f"r{made}"], now)
            for id_ in random.sample(sorted(running), min(len(running), 3)):
                produced[id_] += random.randrange(1, 60)
                usage = Usage(running[id_].prompt_tokens, 0, produced[id_])
                match random.randrange(4):
                    case 0:
                        recorder.tokens(id_, usage, now)
                    case 1 if running[id_].is_resumable:
                        recorder.interrupted(id_, usage, now, 0.2)
                        waiting[id_] = running.pop(id_)
                    case _:
                        del running[id_]
                        recorder.finished(id_, Outcome.COMPLETED, now, None, usage)
            for action in recorder.poll(now):
                if isinstance(action, Dispatch):
                    running[action.request_id] = waiting.pop(action.request_id)
                    sent += 1
                elif isinstance(action, Reject):
                    del waiting[action.request_id]
    return sent


def replayed(folder: str) -> str:
    """What is decided otherwise than recorded, and what is known at the end, of each recording."""
    lines = []
    for fairness in sorted(FAIRNESS):
        again = make(fairness)
        with (Path(folder) / fairness).open("rb") as recording:
            *_, last = entries = list(read_from(recording))
        otherwise = list(replay(entries, again))
        lines.append(f"{fairness} {otherwise} {again.checkpoint()} {again.snapshot(last.now).tenants}\n")
    return "".join(lines)


@pytest.mark.skipif(not scheduler.__file__.endswith(".so"), reason="the policies are not compiled")
def test_compiled_policies_decide_as_their_sources(tmp_path):
    for fairness in FAIRNESS:
        assert record(tmp_path, fairness) > STEPS / 4
    command = [sys.executable, "-c", SOURCES, str(ROOT), str(tmp_path)]
    of_sources = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert of_sources.count(" [] ") == len(FAIRNESS)
    assert of_sources == replayed(str(tmp_path))
