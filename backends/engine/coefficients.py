"""Step-time coefficients by model and machine: linear models of how long a step takes.

A step reads all weights once (base), computes its new tokens (token) and reads the KV entries of every request in it
(context token). Engines that prefill alone have a second line for that step. Every entry names its source; the roofline
estimates were never measured.

Published profiles of another form (piecewise in tokens, or without a context term and without a pool size) are left
out, because they would give only half a model.
"""

from dataclasses import dataclass, fields, replace

from policies.step_time.model import StepTimeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCoefficients:
    """The coefficients of a linear model of one engine's step time, for one language model on one machine. Times are in
    seconds. `kv_tokens_max` is the size of the KV pool in tokens. Every step also takes `overhead_s` on the host.

    A step with decodes takes base_s + token_s * new tokens + context_token_s * context tokens + request_s * requests. A
    step with prompts alone takes prefill_base_s + prefill_token_s * new tokens + prefill_request_s * requests, plus
    context_token_s for each cached token (prefill_token_s includes the rest of the context). If the prefill
    coefficients are None, the first formula holds for both.
    """

    base_s: float
    token_s: float
    context_token_s: float
    request_s: float = 0.0
    prefill_base_s: float | None = None
    prefill_token_s: float | None = None
    prefill_request_s: float = 0.0
    overhead_s: float = 0.0
    kv_tokens_max: int
    source: str

    def mixed_s(self, *, new_tokens: int, context_tokens: int, requests: int) -> float:
        """Return the seconds of a step that decodes, with or without prefill chunks beside the decodes."""
        return (
            self.base_s
            + self.token_s * new_tokens
            + self.context_token_s * context_tokens
            + self.request_s * requests
            + self.overhead_s
        )

    def scaled(self, by: float, *, source: str | None = None) -> "StepCoefficients":
        """The coefficients with all step times multiplied by this factor."""
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.name.endswith("_s")}
        times = {name: value * by for name, value in known.items() if value is not None}
        return replace(self, source=source or self.source, **times)

    def step_time_model(self) -> StepTimeModel:
        """Return the exact step-time model of this engine's mixed steps."""
        return StepTimeModel(
            self.base_s + self.overhead_s, self.token_s, context_token_s=self.context_token_s, request_s=self.request_s
        )

    def prefill_s(self, *, new_tokens: int, cached_tokens: int, requests: int) -> float:
        """Return the seconds of a step that only prefills whole prompts, `cached_tokens` of them found in the cache."""
        if self.prefill_base_s is None or self.prefill_token_s is None:
            return self.mixed_s(new_tokens=new_tokens, context_tokens=new_tokens + cached_tokens, requests=requests)
        return (
            self.prefill_base_s
            + self.prefill_token_s * new_tokens
            + self.prefill_request_s * requests
            + self.context_token_s * cached_tokens
            + self.overhead_s
        )


COEFFICIENTS: dict[str, StepCoefficients] = {
    "a10g-llama2-7b": StepCoefficients(
        base_s=18.16e-3,
        token_s=0.215e-3,
        context_token_s=1.89e-6,
        prefill_base_s=44.6e-3,
        prefill_token_s=0.2069e-3,
        prefill_request_s=0.184e-3,
        overhead_s=2.4e-3,
        kv_tokens_max=10_000,
        source=(
            "least squares over the cost profile of the VTC artifact (S-LoRA engine, 24 GB A10G): decode mean error"
            " 3.5 %, prefill 1.8 % (profiled at 5,000-9,900 tokens: the base is an extrapolation); overhead calibrated"
            " to the paper's tables"
        ),
    ),
    "a100-llama2-13b": StepCoefficients(
        base_s=24e-3,
        token_s=0.10e-3,
        context_token_s=0.55e-6,
        prefill_base_s=30e-3,
        prefill_token_s=0.10e-3,
        kv_tokens_max=35_000,
        source="hand-fitted to six throughputs of the VTC ablation logs (80 GB A100), all within -9..+6 %",
    ),
    "h20-qwen3-14b": StepCoefficients(
        base_s=9.3e-3,
        token_s=0.31e-3,
        context_token_s=0.051e-6,
        overhead_s=6.5e-3,
        kv_tokens_max=328_000,
        source="roofline estimate (148 TFLOP/s at 65 %, 4.0 TB/s at 80 %); host overhead 5-8 ms assumed",
    ),
    "a800-llama3.1-8b": StepCoefficients(
        base_s=9.9e-3,
        token_s=0.086e-3,
        context_token_s=0.084e-6,
        kv_tokens_max=467_000,
        source="roofline estimate (312 TFLOP/s at 60 %, 1.94 TB/s at 80 %); no host overhead",
    ),
    "a10g-llama3.2-3b": StepCoefficients(
        base_s=13e-3,
        token_s=0.15e-3,
        context_token_s=0.24e-6,
        kv_tokens_max=120_000,
        source="roofline estimate; no host overhead",
    ),
    "cpu-tiny": StepCoefficients(
        base_s=0.95e-3,
        token_s=9e-6,
        context_token_s=0.05e-6,
        request_s=35e-6,
        kv_tokens_max=131_072,
        source=(
            "robust fit to step logs of vLLM 0.32 with a 1.3 M-parameter model on 2 CPU cores: median error 6.6 %,"
            " p90 20-35 % (noisy machine); the pool is a choice"
        ),
    ),
    "cpu-13m": StepCoefficients(
        base_s=3.5e-3,
        token_s=68e-6,
        context_token_s=0.1e-6,
        request_s=0.3e-3,
        kv_tokens_max=16_384,
        source=(
            "measured with vLLM 0.32 and a 13 M-parameter model on 2 CPU cores: 143 tokens/s of answers of 24, with"
            " prompts of 2,000 computed whole; the pool is a choice"
        ),
    ),
    "2xh100-qwen3-30b": StepCoefficients(
        base_s=9e-3,
        token_s=30e-6,
        context_token_s=0.018e-6,
        request_s=20e-6,
        kv_tokens_max=2_240_000,
        source=(
            "221 tokens/s of answers of 350, with prompts of 50,000 computed whole (llm-d-router #2964), and a roofline"
            " estimate"
        ),
    ),
}
