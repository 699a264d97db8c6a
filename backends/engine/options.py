"""Options of an embedded server: its sizes and its policies."""

from dataclasses import dataclass

from backends.engine.batching import BATCHING, CHUNK_TOKENS_MAX
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of one embedded server (EngineServer). Sizes are totals of all its engines, which get equal parts."""

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
    engines: int = 1
    speed: float = 1.0
    """The speed relative to the model that the engine simulates."""
    seed: int = 0
    output_tokens_mean: int | None = 128
    """Mean of exponential answer lengths; None: every answer runs to its max_tokens."""
    max_num_queued_reqs: int | None = None
    """Most sequences in flight, waiting or running, before requests are answered with 503."""
    prompt_tokens_details: bool = False
    """Report cached_tokens."""
    stream_interval: int = 1
    """Tokens per chunk after the first."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that are loaded, by name."""

    def __post_init__(self) -> None:
        """Raise ValueError for an option with which no server could start."""
        if self.coefficients not in COEFFICIENTS:
            raise ValueError(f"no coefficients {self.coefficients!r}; there are {', '.join(COEFFICIENTS)}")
        if self.batching not in BATCHING:
            raise ValueError(f"no batching {self.batching!r}; there are {', '.join(BATCHING)}")
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
