"""vLLM's scheduler without its engine: `PYTHON virtual_engine.py MODEL_DIR` drives FairScheduler and vLLM's own one
through steps that take as long as a model says, on a clock that is moved by hand; prints JSON.

It is where asynchronous scheduling can be had on a machine without an accelerator: the next step is formed while one
is in flight, as EngineCore.step_with_batch_queue does. Run with vLLM's Python, and the plugin installed.
"""

import json
import os
import sys
from collections import deque
from random import Random
from types import SimpleNamespace

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", FAIRLEAD_GC="0")

import fairlead_vllm.scheduler
import torch
from fairlead_vllm._policies.step_time import StepTimeModel
from fairlead_vllm.scheduler import FairScheduler
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

MODEL = StepTimeModel(base_s=0.004, token_s=0.00003, context_token_s=0.00000002, request_s=0.00001)
BLOCK_TOKENS = 16
STEP_TOKENS_MAX = 2048
OUTPUT_TOKENS = {"chat": 100, "batch": 5}
REQUESTS, ARRIVING_S, LEARNING_S = 140, 6.5, 1.0  # as many as it can just serve
TTFT_S, TPOT_S = {"chat": 0.2, "batch": 60.0}, {"chat": 0.02, "batch": 2.0}
RUNS = [("fair", FairScheduler, 8192), ("cramped", FairScheduler, 300), ("vllm", AsyncScheduler, 8192)]
NOBODY_S = 1000.0  # of virtual time: something is stuck


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


CLOCK = Clock()
fairlead_vllm.scheduler.time = SimpleNamespace(monotonic=CLOCK, time=CLOCK)


def make(scheduler, model, blocks):
    config = EngineArgs(
        model=model, max_num_batched_tokens=STEP_TOKENS_MAX, max_num_seqs=32, max_model_len=4096, enforce_eager=True,
        block_size=BLOCK_TOKENS,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        log_stats=True,
    )


def arrivals(seed):
    """Chats at random times, and long prompts of which some share their beginning; some clients leave."""
    rng = Random(seed)
    shared = [rng.randrange(5, 4000) for _ in range(1000)]
    for number in range(REQUESTS):
        at = 1000.0 + rng.uniform(0.0, ARRIVING_S)
        kind = "chat" if number % 2 else "batch"
        prompt = [rng.randrange(5, 4000) for _ in range(rng.randrange(20, 100) if kind == "chat" else 2000)]
        left_at = at + 0.3 if number % 16 == 5 else None
        yield at, f"{kind}-{number}", shared + prompt if number % 8 == 0 else prompt, left_at


def request(name, prompt, at, hasher):
    kind = name.partition("-")[0]
    extra_args = {"tenant": kind, "slo_ttft_ms": 1e3 * TTFT_S[kind], "slo_tpot_ms": 1e3 * TPOT_S[kind]}
    parameters = SamplingParams(max_tokens=OUTPUT_TOKENS[kind], ignore_eos=True, extra_args=extra_args)
    parameters.update_from_generation_config({}, 2)
    return Request(name, prompt, parameters, None, arrival_time=at, block_hasher=hasher)


class Run:
    """One scheduler through all arrivals, with `depth` steps in flight at most."""

    def __init__(self, scheduler, model, *, depth, blocks):
        CLOCK.now = 1000.0
        self.scheduler, self.depth = make(scheduler, model, blocks), depth
        self.hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self.ahead = deque(sorted(arrivals(1)))
        self.leaving = sorted((left_at, name) for _, name, _, left_at in self.ahead if left_at is not None)
        self.came_at = {}
        self.tokens = {}
        self.flight = deque()
        self.free_at = CLOCK.now
        self.steps = 0
        self.preemptions = 0

    def go(self):
        while self.ahead or self.scheduler.has_requests() or self.flight:
            assert CLOCK.now < 1000.0 + NOBODY_S, "nothing moves any more"
            self.come_and_go()
            if self.scheduler.has_requests() and len(self.flight) < self.depth:
                output = self.scheduler.schedule()
                if output.total_num_scheduled_tokens:
                    self.fly(output)
                    continue
                self.scheduler.update_from_output(output, outcome(self.scheduler, output))
            if self.flight:
                self.land()
            elif self.ahead:
                CLOCK.now = max(CLOCK.now, self.ahead[0][0])
        return self.findings()

    def come_and_go(self):
        while self.ahead and self.ahead[0][0] <= CLOCK.now:
            at, name, prompt, _ = self.ahead.popleft()
            self.came_at[name], self.tokens[name] = at, []
            self.scheduler.add_request(request(name, prompt, at, self.hasher))
        while self.leaving and self.leaving[0][0] <= CLOCK.now:
            self.scheduler.finish_requests(self.leaving.pop(0)[1], RequestStatus.FINISHED_ABORTED)

    def fly(self, output):
        """A step starts when the one before it is through."""
        scheduled = output.num_scheduled_tokens
        context_tokens = sum(self.scheduler.requests[each].num_computed_tokens for each in scheduled)
        took_s = MODEL.step_s(
            new_tokens=output.total_num_scheduled_tokens, context_tokens=context_tokens, requests=len(scheduled)
        )
        self.free_at = max(self.free_at, CLOCK.now) + took_s
        self.flight.append((self.free_at, output, outcome(self.scheduler, output)))
        self.steps += 1
        self.preemptions += len(output.preempted_req_ids or ())

    def land(self):
        CLOCK.now, output, ran = self.flight.popleft()
        for outputs in self.scheduler.update_from_output(output, ran).values():
            for each in outputs.outputs:
                self.tokens[each.request_id] += [CLOCK.now] * len(each.new_token_ids)

    def findings(self):
        left = {name for _, name, _, left_at in arrivals(1) if left_at is not None}
        stayed = {name: at for name, at in self.tokens.items() if name not in left}
        chats = {
            name: at
            for name, at in stayed.items()
            if name.startswith("chat") and self.came_at[name] >= 1000.0 + LEARNING_S
        }
        in_time = [
            at <= self.came_at[name] + TTFT_S["chat"] + number * TPOT_S["chat"]
            for name, times in chats.items()
            for number, at in enumerate(times)
        ]
        entries = getattr(self.scheduler, "_accounts", SimpleNamespace(entries={})).entries
        return {
            "incomplete": [name for name, at in stayed.items() if len(at) != OUTPUT_TOKENS[name.partition("-")[0]]],
            "tokens_in_time": sum(in_time) / len(in_time),
            "took_s": CLOCK.now - 1000.0,
            "steps": self.steps,
            "preemptions": self.preemptions,
            "remembered": len(entries),
            "blocks_free": self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }


def outcome(scheduler, output):
    """A token for each request whose prompt is through with this step."""
    scheduled = list(output.num_scheduled_tokens)
    ended = [not scheduler.requests[each].is_prefill_chunk for each in scheduled]
    return ModelRunnerOutput(
        req_ids=scheduled,
        req_id_to_index={name: index for index, name in enumerate(scheduled)},
        sampled_token_ids=[[7] if each else [] for each in ended],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def main(model):
    init_none_hash(sha256)
    found = {}
    for depth in (1, 2):
        for name, scheduler, blocks in RUNS:
            found[f"{name} {depth}"] = Run(scheduler, model, depth=depth, blocks=blocks).go()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
