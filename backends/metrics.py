"""Metrics: a parser of the /metrics text of an inference server.

The Prometheus text format is read line by line, and only for the names in `_SAMPLES`; the buckets of histograms, nine
tenths of a scrape, are skipped by name. Several `engine=` labels behind one URL are several engines (data parallelism):
counts and capacities add up; the KV ratio is the mean weighted by capacity. The text is untrusted: a sample that is
malformed or not a number is skipped, and nothing here raises for it.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4). Names: vLLM 0.32, and
`vllm:gpu_cache_usage_perc` for servers before its renaming; SGLang (docs.sglang.io/references/production_metrics),
llama.cpp (tools/server/README.md) and TGI (huggingface.co/docs/text-generation-inference/reference/metrics), as far as
they have them.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from policies.types import BackendLoad

SCRAPE_BYTES_MAX = 4 << 20  # about 50 kB per engine: room for eighty of them behind one URL
LINE_CHARS_MAX = 16 << 10
ENGINES_MAX = 256

_Values = dict[str, float]  # field of EngineMetrics -> value, of one engine


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """Step counters of one engine since it started (`_total`), and gauges as of its last step. Each sequence counts as
    one request.

    `step_tokens_total` counts computed tokens, not cached prompt tokens. If a prompt is computed in several steps, all
    of its tokens count in the last of them. A step that ends no prompt and decodes no sequence is not counted.
    """

    engine: str
    steps_total: int
    step_tokens_total: int
    generation_tokens_total: int
    requests_running: int
    kv_used_tokens: float
    kv_block_tokens: int
    requests_waiting: int = 0  # for capacity, where the server gives the reason
    requests_finished_total: int = 0  # where the server counts them


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """The values of one scrape of a server's /metrics, all of its engines together. None: the server does not publish
    the value. Fields named `_total` count since the server started; the others are as of the last engine step. Each
    sequence counts as one request, so a call for n choices counts n times. `step_tokens_total` are the tokens that
    engine steps computed.
    """

    engines: int = 0
    requests_running: int | None = None
    requests_waiting: int | None = None
    requests_waiting_for_capacity: int | None = None
    requests_finished_total: int | None = None
    preemptions_total: int | None = None
    kv_used_ratio: float | None = None
    kv_tokens_max: int | None = None
    kv_block_tokens: int | None = None
    prefix_caching: bool | None = None
    steps_total: int | None = None
    step_tokens_total: int | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    drafts_total: int | None = None
    draft_tokens_accepted_total: int | None = None
    prefix_hit_tokens_total: int | None = None
    engine_steps: tuple[EngineSteps, ...] = ()

    def sizes(self) -> "EngineMetrics":
        """Return only the values that hold without a fresh scrape: the sizes of the server, not its activity."""
        return EngineMetrics(
            engines=self.engines,
            kv_tokens_max=self.kv_tokens_max,
            kv_block_tokens=self.kv_block_tokens,
            prefix_caching=self.prefix_caching,
        )

    def load(self, backend_id: str, *, available: bool) -> BackendLoad:
        """Convert the metrics to the scheduler's BackendLoad, which has no sizes but those that a server reports."""
        return BackendLoad(
            backend_id=backend_id,
            available=available,
            engines=max(self.engines, 1),
            kv_tokens_max=self.kv_tokens_max,
            kv_block_tokens=self.kv_block_tokens or 1,
            prefixes_shared=self.prefix_caching is not False,
            requests_running=self.requests_running,
            requests_waiting=self.requests_waiting,
            requests_waiting_for_room=self.requests_waiting_for_capacity,
            kv_used_ratio=self.kv_used_ratio,
            preemptions_total=self.preemptions_total,
        )


def parse_metrics(text: str) -> EngineMetrics:
    """Parse one scrape. Never raises; reads at most SCRAPE_BYTES_MAX characters and ENGINES_MAX engines."""
    by_engine: defaultdict[str, _Values] = defaultdict(dict)
    for line in text[:SCRAPE_BYTES_MAX].split("\n"):
        name, brace, _ = line.partition("{")
        if not brace:
            name = line.partition(" ")[0]
        if name not in _SAMPLES or len(line) > LINE_CHARS_MAX:
            continue
        match = _SAMPLE_LINE.match(line, len(name))
        if match is None:
            continue
        labels = _labels(match[1] or "")
        engine = labels.get("engine", labels.get("dp_rank", ""))  # the label of vLLM, and of SGLang
        if "dp_rank" not in labels and labels.get("tp_rank", "0") != "0":
            continue  # every part of one SGLang engine may publish the same
        if engine in by_engine or len(by_engine) < ENGINES_MAX:
            _read(by_engine[engine], name, labels, match[2])
    steps = [_steps(engine, values) for engine, values in by_engine.items() if values.keys() >= _STEP_FIELDS]
    return _together([values for values in by_engine.values() if values], tuple(steps))


_SAMPLES: dict[str, str] = {
    "vllm:num_requests_running": "requests_running",
    "vllm:num_requests_waiting": "requests_waiting",
    "vllm:num_requests_waiting_by_reason": "requests_waiting_for_capacity",
    "vllm:request_success_total": "requests_finished_total",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:kv_cache_usage_perc": "kv_used_ratio",
    "vllm:gpu_cache_usage_perc": "kv_used_ratio",
    "vllm:cache_config_info": "",  # its labels are the facts
    "vllm:iteration_tokens_total_count": "steps_total",
    "vllm:iteration_tokens_total_sum": "step_tokens_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
    "vllm:spec_decode_num_drafts_total": "drafts_total",
    "vllm:spec_decode_num_accepted_tokens_total": "draft_tokens_accepted_total",
    "vllm:prefix_cache_hits_total": "prefix_hit_tokens_total",
    "sglang:num_running_reqs": "requests_running",
    "sglang:num_queue_reqs": "requests_waiting",
    "sglang:num_requests_total": "requests_finished_total",
    "sglang:token_usage": "kv_used_ratio",
    "sglang:max_total_num_tokens": "kv_tokens_max",
    "sglang:prompt_tokens_total": "prompt_tokens_total",
    "sglang:generation_tokens_total": "generation_tokens_total",
    "llamacpp:requests_processing": "requests_running",
    "llamacpp:requests_deferred": "requests_waiting",
    "llamacpp:kv_cache_usage_ratio": "kv_used_ratio",
    "llamacpp:n_decode_total": "steps_total",
    "llamacpp:prompt_tokens_total": "prompt_tokens_total",
    "llamacpp:tokens_predicted_total": "generation_tokens_total",
    "tgi_batch_current_size": "requests_running",
    "tgi_queue_size": "requests_waiting",
    "tgi_request_success": "requests_finished_total",
}
_STEP_FIELDS = {"steps_total", "step_tokens_total", "generation_tokens_total", "requests_running", "kv_used_ratio"}
_STEP_FIELDS |= {"kv_tokens_max"}
_SUMMED = sorted({*_SAMPLES.values(), "kv_tokens_max"} - {"", "kv_used_ratio"})

# After the name come labels, whose quoted values may hold braces, commas and escaped quotes, then the value. The
# quantifiers are possessive, so that a line that does not match fails in linear time.
_SAMPLE_LINE = re.compile(r'(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?[ \t]*([^ \t]+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}  # a backslash or a quote stands for itself


def _labels(text: str) -> dict[str, str]:
    labels = dict(_LABEL.findall(text))
    if "\\" in text:
        return {name: _ESCAPE.sub(lambda m: _UNESCAPED.get(m[1], m[1]), value) for name, value in labels.items()}
    return labels


def _read(values: _Values, name: str, labels: Mapping[str, str], number: str) -> None:
    """Add one sample to the values of its engine. Samples that differ in other labels add up."""
    if name == "vllm:cache_config_info":
        values.update(_cache_config(labels))
        return
    if labels.get("reason", "capacity") != "capacity":  # deferred: waits for a transfer or a grammar, not for room
        return
    field, value = _SAMPLES[name], _number(number)
    if value is not None:
        values[field] = value if field == "kv_used_ratio" else values.get(field, 0.0) + value


def _cache_config(labels: Mapping[str, str]) -> _Values:
    """Read the KV pool's size from the labels of the info metric; vLLM writes "None" for a value that is not set."""
    block = _number(labels.get("effective_attention_block_size")) or _number(labels.get("block_size"))
    blocks, tokens = _number(labels.get("num_gpu_blocks")), _number(labels.get("kv_cache_size_tokens"))
    if not tokens and block and blocks:
        tokens = block * blocks
    caching = {"True": 1.0, "False": 0.0}.get(labels.get("enable_prefix_caching", ""))
    found = {"kv_block_tokens": block, "kv_tokens_max": tokens or None, "prefix_caching": caching}
    return {field: value for field, value in found.items() if value is not None}


def _number(text: str | None) -> float | None:
    """Parse a finite, non-negative number, as every value here is; None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < inf else None


def _steps(engine: str, values: _Values) -> EngineSteps:
    return EngineSteps(
        engine=engine,
        steps_total=int(values["steps_total"]),
        step_tokens_total=int(values["step_tokens_total"]),
        generation_tokens_total=int(values["generation_tokens_total"]),
        requests_running=int(values["requests_running"]),
        kv_used_tokens=min(values["kv_used_ratio"], 1.0) * values["kv_tokens_max"],
        kv_block_tokens=int(values.get("kv_block_tokens", 1)),
        requests_waiting=int(values.get("requests_waiting_for_capacity", values.get("requests_waiting", 0))),
        requests_finished_total=int(values.get("requests_finished_total", 0)),
    )


def _together(engines: list[_Values], steps: tuple[EngineSteps, ...]) -> EngineMetrics:
    # a label set that only counts belongs to the API process, not to an engine
    sized = [e for e in engines if e.keys() & {"requests_running", "kv_used_ratio", "kv_block_tokens"}]
    facts: dict[str, Any] = {field: int(sum(_known(engines, field))) for field in _SUMMED if _known(engines, field)}
    if blocks := _known(sized, "kv_block_tokens"):
        facts["kv_block_tokens"] = int(max(blocks))  # a sequence wastes part of a block: the largest is safe
    if caching := _known(sized, "prefix_caching"):
        facts["prefix_caching"] = all(caching)
    return EngineMetrics(engines=len(sized), kv_used_ratio=_kv_used_ratio(sized), engine_steps=steps, **facts)


def _known(engines: list[_Values], field: str) -> list[float]:
    return [engine[field] for engine in engines if field in engine]


def _kv_used_ratio(engines: list[_Values]) -> float | None:
    """Return the mean KV ratio over engines, weighted by capacity if all of them publish theirs."""
    measured = [e for e in engines if "kv_used_ratio" in e]
    if not measured:
        return None
    weighted = all(e.get("kv_tokens_max") for e in measured)
    weights = [e["kv_tokens_max"] if weighted else 1.0 for e in measured]
    mean = sum(w * e["kv_used_ratio"] for w, e in zip(weights, measured, strict=True)) / sum(weights)
    return min(mean, 1.0)
