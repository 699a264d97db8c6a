"""The embedded engine under a load that never changes, told step by step, and what it says to a scrape."""

import random
from collections import Counter

from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from backends.engine.engine import Engine, EngineRequest
from backends.engine.http.exposition import CacheConfig, EngineMeters, render

CPU, GPU = COEFFICIENTS["cpu-tiny"], COEFFICIENTS["a800-llama3.1-8b"]
BLOCK_TOKENS = 16
CACHE = CacheConfig(block_tokens=BLOCK_TOKENS, blocks=8000, max_model_len=4096)


class Load:
    """An engine under its own clock, `concurrent` requests at a time of mixed lengths, and what it says to a scrape."""

    def __init__(
        self,
        coefficients: StepCoefficients,
        *,
        concurrent=24,
        seed=1,
        prompts_max=1500,
        answers_max=200,
        shared_blocks=0,
        slots=32,
        step_tokens_max=512,
        pause_s_max=1.0,
    ):
        self.engine = Engine(
            coefficients,
            kv_tokens_max=CACHE.blocks * BLOCK_TOKENS,
            requests_running_max=slots,
            batching=ChunkedPrefill(tokens_max=step_tokens_max),
        )
        self.meters, self.rng = EngineMeters(), random.Random(seed)
        self.concurrent, self.prompts_max, self.answers_max = concurrent, prompts_max, answers_max
        self.shared = tuple(range(1, shared_blocks + 1))  # of every prompt
        self.pause_s_max = pause_s_max
        self.now, self.in_flight, self.sent, self.plans = 0.0, 0, 0, []

    def run_until(self, until: float) -> None:
        while self.now < until:
            while self.in_flight < self.concurrent:
                self.sent += 1
                self.in_flight += 1
                prompt = len(self.shared) * BLOCK_TOKENS + self.rng.randint(20, self.prompts_max)
                request = EngineRequest(str(self.sent), prompt, self.rng.randint(2, self.answers_max), self.shared)
                self.engine.submit(request, self.now)
            plan = self.engine.step_begin(self.now)
            if plan is None:
                self.now = until
                return
            self.now += plan.duration_s
            report = self.engine.step_end()
            self.meters.step(report)
            self.plans.append(plan)
            self.meters.finished["length"] += len(report.finished)
            self.in_flight -= len(report.finished)
            if not self.in_flight:  # a pause that no answer had
                self.now += self.rng.uniform(0.0, self.pause_s_max)

    def text(self) -> str:
        return render([(self.engine.snapshot(), self.meters)], model="m", cache=CACHE, rejections=Counter())
