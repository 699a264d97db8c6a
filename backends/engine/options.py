"""Options of an embedded server: its sizes, its policies, and its faults."""

from dataclasses import dataclass

from backends.engine.batching import BATCHING, CHUNK_TOKENS_MAX
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import BLOCK_TOKENS
from backends.engine.slots import ORDERS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of one embedded server. Sizes are of all engines together and split evenly. Faults are for tests."""

    model: str = "embedded"
    coefficients: str = "a10g-llama3.2-3b"
    """A name in COEFFICIENTS."""
    max_model_len: int = 8192
    kv_tokens_max: int | None = None
    """KV pool; None for what the coefficients say."""
    block_tokens: int = BLOCK_TOKENS
    requests_running_max: int = 256
    chunk_tokens_max: int = CHUNK_TOKENS_MAX
    batching: str = "chunked-prefill"
    """The batching policy, a name in BATCHING."""
    order: str = "fcfs"
    """Scheduling policy, a name in ORDERS: fcfs or priority."""
    engines: int = 1
    speed: float = 1.0
    """The speed relative to the model that the engine simulates."""
    seed: int = 0
    output_tokens_mean: int | None = 128
    """Mean of exponential answer lengths; None: every answer runs to its max_tokens."""
    api_key: str | None = None
    max_num_queued_reqs: int | None = None
    """Most sequences in flight, waiting or running, before requests are answered with 503."""
    prompt_tokens_details: bool = False
    """Report cached_tokens."""
    stream_interval: int = 1
    """Tokens per chunk after the first."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that are loaded, by name."""
    responses_stored: bool = False
    """Keep responses to be asked for by id, and take them in the background (VLLM_ENABLE_RESPONSES_API_STORE)."""
    continuous_usage: bool = True
    """False: ignore continuous_usage_stats, as other servers do."""
    cut_stream_after_tokens: int | None = None
    """Drop the connection of a stream once it has carried this many tokens."""
    fail_stream_after_tokens: int | None = None
    """End a stream as vLLM does when its engine process dies: an error event, then [DONE]."""

    def __post_init__(self) -> None:
        """Raise ValueError for an option with which no server could start."""
        if self.coefficients not in COEFFICIENTS:
            raise ValueError(f"no coefficients {self.coefficients!r}; there are {', '.join(COEFFICIENTS)}")
        if self.batching not in BATCHING:
            raise ValueError(f"no batching {self.batching!r}; there are {', '.join(BATCHING)}")
        if self.order not in ORDERS:
            raise ValueError(f"no order {self.order!r}; there are {', '.join(ORDERS)}")
        for name in ("engines", "max_model_len", "block_tokens", "chunk_tokens_max", "stream_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.output_tokens_mean is not None and self.output_tokens_mean < 1:
            raise ValueError(f"output_tokens_mean must be at least 1, got {self.output_tokens_mean}")
        if self.requests_running_max < self.engines:
            raise ValueError("every engine needs at least one slot")
        if self.speed <= 0:
            raise ValueError(f"speed must be positive, got {self.speed}")
        if self.blocks_per_engine * self.block_tokens < self.max_model_len:
            raise ValueError(f"a KV pool must hold one request of max_model_len={self.max_model_len} tokens")

    @property
    def blocks_per_engine(self) -> int:
        """The number of blocks in the KV pool of one engine."""
        tokens = self.kv_tokens_max or COEFFICIENTS[self.coefficients].kv_tokens_max
        return tokens // self.engines // self.block_tokens
