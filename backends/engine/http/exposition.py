"""The engines' metrics in vLLM's format: names, labels and meaning of vLLM 0.32.

iteration_tokens_total counts as in vLLM: a step that emits adds its emitted tokens and the prompts it completed,
without the tokens from the cache; a step that only computes a part of a prompt adds nothing.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backends.engine.engine import EngineSnapshot, StepResult

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")

Labels = dict[str, str]
Samples = Iterable[tuple[str, Labels, float]]


@dataclass(slots=True)
class EngineMeters:
    """Counts of one engine's steps, tokens and ended requests, for the metrics that the engine's own totals do not
    include.
    """

    iteration_counts: list[int] = field(default_factory=lambda: [0] * (len(ITERATION_BUCKETS) + 1))
    iteration_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)

    def step(self, report: StepResult) -> None:
        """Count a step that has ended."""
        if not report.emitted:
            return
        cached = sum(report.prefilled.values())
        self.prompt_tokens += report.prompt_tokens
        self.cached_tokens += cached
        tokens = report.prompt_tokens - cached + len(report.emitted)
        self._count(tokens, steps=1)

    def decoded(self, *, steps: int, tokens: int) -> None:
        """Count steps that each gave `tokens` requests one token and did nothing else."""
        self._count(tokens, steps=steps)

    def _count(self, tokens: int, *, steps: int) -> None:
        self.iteration_tokens += steps * tokens
        self.iteration_counts[bisect_left(ITERATION_BUCKETS, tokens)] += steps


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The labels of vLLM's metric cache_config_info, which are constant."""

    block_tokens: int
    blocks: int
    max_model_len: int

    def labels(self) -> Labels:
        tokens = self.blocks * self.block_tokens
        return {
            "block_size": f"{self.block_tokens}",
            "cache_dtype": "auto",
            "effective_attention_block_size": f"{self.block_tokens}",
            "enable_prefix_caching": "True",
            "gpu_memory_utilization": "0.92",
            "kv_cache_max_concurrency": f"{tokens / self.max_model_len}",
            "kv_cache_size_tokens": f"{tokens}",
            "num_gpu_blocks": f"{self.blocks}",
            "num_gpu_blocks_override": "None",
            "user_specified_block_size": "False",
        }


def render(
    engines: Sequence[tuple[EngineSnapshot, EngineMeters]], *, model: str, cache: CacheConfig, rejections: Counter[str]
) -> str:
    """Return the text of /metrics."""
    lines: list[str] = []
    for name, kind, samples in _families(engines, cache, rejections):
        lines.append(f"# HELP vllm:{name} As vLLM reports it.")
        lines.append(f"# TYPE vllm:{name} {kind}")
        for suffix, labels, value in samples:
            full = sorted({"model_name": model, **labels}.items())
            if name == "cache_config_info":
                full = sorted(labels.items())
            text = ",".join(f'{key}="{_escape(label)}"' for key, label in full)
            lines.append(f"vllm:{name}{suffix}{{{text}}} {float(value)}")
    return "\n".join(lines) + "\n"


def _families(
    engines: Sequence[tuple[EngineSnapshot, EngineMeters]], cache: CacheConfig, rejections: Counter[str]
) -> Iterable[tuple[str, str, Samples]]:
    indexed = [({"engine": str(index)}, snapshot, meters) for index, (snapshot, meters) in enumerate(engines)]
    for name, kind, key, per_label in _FAMILIES:
        samples = [
            ("", {**labels, **({key: label} if key else {})}, value)
            for labels, snapshot, meters in indexed
            for label, value in per_label(snapshot, meters).items()
        ]
        yield name, kind, samples
    yield (
        "iteration_tokens_total",
        "histogram",
        [s for labels, _, meters in indexed for s in _histogram(labels, meters)],
    )
    yield "admission_rejections_total", "counter", [("", {"reason": r}, rejections[r]) for r in REJECTION_REASONS]
    yield "cache_config_info", "gauge", [("", {**labels, **cache.labels()}, 1) for labels, _, _ in indexed]


_FAMILIES = (
    ("num_requests_running", "gauge", "", lambda now, _: {"": now.requests_running}),
    ("num_requests_waiting", "gauge", "", lambda now, _: {"": now.requests_waiting}),
    (
        "num_requests_waiting_by_reason",
        "gauge",
        "reason",
        lambda now, _: {"capacity": now.requests_waiting, "deferred": 0},
    ),
    ("engine_sleep_state", "gauge", "sleep_state", lambda *_: {"awake": 1, "weights_offloaded": 0, "discard_all": 0}),
    ("kv_cache_usage_perc", "gauge", "", lambda now, _: {"": now.kv_used_ratio}),
    ("prefix_cache_queries_total", "counter", "", lambda now, _: {"": now.prefix_queries_total}),
    ("prefix_cache_hits_total", "counter", "", lambda now, _: {"": now.prefix_hits_total}),
    ("external_prefix_cache_queries_total", "counter", "", lambda *_: {"": 0}),
    ("external_prefix_cache_hits_total", "counter", "", lambda *_: {"": 0}),
    ("num_preemptions_total", "counter", "", lambda now, _: {"": now.preemptions_total}),
    ("prompt_tokens_total", "counter", "", lambda _, meters: {"": meters.prompt_tokens}),
    (
        "prompt_tokens_by_source_total",
        "counter",
        "source",
        lambda _, meters: {
            "local_compute": meters.prompt_tokens - meters.cached_tokens,
            "local_cache_hit": meters.cached_tokens,
            "external_kv_transfer": 0,
        },
    ),
    ("prompt_tokens_cached_total", "counter", "", lambda _, meters: {"": meters.cached_tokens}),
    ("generation_tokens_total", "counter", "", lambda now, _: {"": now.emitted_tokens_total}),
    (
        "request_success_total",
        "counter",
        "finished_reason",
        lambda _, meters: {reason: meters.finished[reason] for reason in FINISH_REASONS},
    ),
)


def _histogram(labels: Labels, meters: EngineMeters) -> Samples:
    total = 0
    for bound, count in zip((*map(float, ITERATION_BUCKETS), "+Inf"), meters.iteration_counts, strict=True):
        total += count
        yield "_bucket", {**labels, "le": str(bound)}, total
    yield "_count", labels, total
    yield "_sum", labels, meters.iteration_tokens


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
