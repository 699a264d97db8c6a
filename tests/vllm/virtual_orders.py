"""The orders of FairScheduler's waiting queue over vLLM's own memory: `PYTHON virtual_orders.py MODEL_DIR` prints JSON.

Steps take as long as a model says (virtual_engine.py). Tenants ask about documents of their own, with hardly more
memory than two documents need; a second pair has weights of 3 and 1 and nothing in common.
"""

import json
import os
import sys
import time
from random import Random

from virtual_engine import BLOCK_TOKENS, CLOCK, MODEL, FairScheduler, make, outcome
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

DOCUMENT_TOKENS, QUESTION_TOKENS, OUTPUT_TOKENS = 960, 32, 4
BLOCKS = 150
TENANTS, QUESTIONS = 4, 15
ORDERS = ("slack", "vtc", "dlpm")


def questions():
    """Tenant, prompt and weights of each: every tenant's first question, every tenant's second ..."""
    rng = Random(3)
    documents = [tokens(rng, DOCUMENT_TOKENS) for _ in range(TENANTS)]
    for _ in range(QUESTIONS):
        for tenant, document in enumerate(documents):
            yield f"t{tenant}", document + tokens(rng, QUESTION_TOKENS), [1.0, 1.0]


def heavy_and_light():
    rng = Random(4)
    for _ in range(40):
        yield "heavy", tokens(rng, 300), [3.0, 1.0]
        yield "light", tokens(rng, 300), [1.0, 1.0]


def tokens(rng, count):
    return [rng.randrange(5, 4000) for _ in range(count)]


def run(order, model, asked):
    """All of them at once; in which order they ended, prompt tokens computed, and seconds of scheduling per step."""
    os.environ["FAIRLEAD_ORDER"] = order
    scheduler = make(FairScheduler, model, BLOCKS)
    hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
    for number, (tenant, prompt, weights) in enumerate(asked):
        extra_args = {"tenant": tenant, "tier": "all", "fairlead_weights": weights}
        parameters = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True, extra_args=extra_args)
        parameters.update_from_generation_config({}, 2)
        arrival_time = CLOCK.now + 1e-6 * number
        scheduler.add_request(
            Request(f"{tenant}-{number}", prompt, parameters, None, arrival_time=arrival_time, block_hasher=hasher)
        )
    ended, computed, steps, busy_s = [], 0, 0, 0.0
    while scheduler.has_requests():
        began_at = time.perf_counter()
        output = scheduler.schedule()
        busy_s += time.perf_counter() - began_at
        steps += 1
        computed += output.total_num_scheduled_tokens
        CLOCK.now += MODEL.step_s(new_tokens=output.total_num_scheduled_tokens, context_tokens=0, requests=1)
        for outputs in scheduler.update_from_output(output, outcome(scheduler, output)).values():
            ended += [each.request_id.partition("-")[0] for each in outputs.outputs if each.finish_reason is not None]
        assert steps < 10_000, "nothing moves any more"
    return {"ended": ended, "computed_tokens": computed, "schedule_s": busy_s / steps}


def main(model):
    init_none_hash(sha256)
    found = {order: run(order, model, questions()) for order in ORDERS}
    found |= {f"{order} by weight": run(order, model, heavy_and_light()) for order in ORDERS[1:]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
