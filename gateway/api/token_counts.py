"""Token counts: the tokens of a prompt before a backend has counted it, and of output that its backend did not count.

By default tokens are estimated: the prompts of one tenant are alike in language and kind, so the average tokens per
byte that backends reported for this tenant and model is off by a few percent in the median, where a fixed ratio is off
by tens. The estimate starts pessimistic (1/3). The charge follows the first reported usage, whatever the estimate.

Where configured, they are counted by a tiktoken encoding built from a local ranks file; nothing is downloaded. Counting
is slow enough to delay other requests, so longer texts are counted in a thread, and the longest are estimated.
"""

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from backends.meters.events import TOKENS_PER_BYTE

if TYPE_CHECKING:
    import tiktoken

TOKENS_PER_BYTE_AT_FIRST = 1 / 3
TOKENS_PER_BYTE_MAX = 4.0
# White space has fewer tokens per byte, and would teach a ratio that makes all other text too cheap.
TOKENS_PER_BYTE_MIN = 1 / 8
# The average moves faster during its first observations.
FAST_ALPHA, FAST_OBSERVATIONS, SLOW_ALPHA = 0.3, 10, 0.1
# A shorter prompt has less weight: most of its tokens are the chat template's.
FULL_WEIGHT_BYTES = 512
RATIOS_MAX = 20_000
LATEST_MAX = 5_000

INLINE_BYTES_MAX = 16 << 10
THREAD_BYTES_MAX = 256 << 10
RANKS_FILE_BYTES_MAX = 64 << 20


Ratio = tuple[str, str, float, int]
"""Tenant, model, tokens per byte of its prompts, and the number of reports behind the ratio."""


@dataclass(slots=True)
class _Ratio:
    tokens_per_byte: float = TOKENS_PER_BYTE_AT_FIRST
    observations: int = 0

    def observe(self, *, prompt_bytes: int, prompt_tokens: int) -> None:
        alpha = FAST_ALPHA if self.observations < FAST_OBSERVATIONS else SLOW_ALPHA
        alpha *= min(prompt_bytes / FULL_WEIGHT_BYTES, 1.0)
        observed = min(max(prompt_tokens / prompt_bytes, TOKENS_PER_BYTE_MIN), TOKENS_PER_BYTE_MAX)
        self.tokens_per_byte += alpha * (observed - self.tokens_per_byte)
        self.observations += 1


class LearntPromptTokens:
    """An estimator of the number of prompt tokens, by the size in bytes. It learns the tokens per byte of each pair of
    tenant and model from the usage that backends report. Mutable. Only the `RATIOS_MAX` pairs seen last are kept.
    """

    def __init__(self, ratios_max: int = RATIOS_MAX) -> None:
        self._ratios: OrderedDict[tuple[str, str], _Ratio] = OrderedDict()
        self._ratios_max = ratios_max

    def estimate(self, tenant_id: str, model: str, prompt_bytes: int) -> int:
        return max(ceil(prompt_bytes * self.tokens_per_byte(tenant_id, model)), 1)

    def tokens_per_byte(self, tenant_id: str, model: str) -> float:
        ratio = self._ratios.get((tenant_id, model))
        return TOKENS_PER_BYTE_AT_FIRST if ratio is None else ratio.tokens_per_byte

    def latest(self) -> list[Ratio]:
        """The `LATEST_MAX` pairs seen last, the most recent one last."""
        latest = list(islice(reversed(self._ratios.items()), LATEST_MAX))
        return [(*pair, ratio.tokens_per_byte, ratio.observations) for pair, ratio in reversed(latest)]

    def remember(self, ratios: Iterable[Ratio]) -> None:
        """Restore ratios that `latest` returned, clamped to the plausible range."""
        for tenant_id, model, tokens_per_byte, observations in ratios:
            believable = min(max(tokens_per_byte, TOKENS_PER_BYTE_MIN), TOKENS_PER_BYTE_MAX)
            self._ratios[tenant_id, model] = _Ratio(believable, observations)

    def observed(self, tenant_id: str, model: str, *, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn from a report. Not for prompts that came as token ids, because their bytes are not text."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        key = (tenant_id, model)
        ratio = self._ratios.get(key)
        if ratio is None:
            if len(self._ratios) >= self._ratios_max:
                self._ratios.popitem(last=False)
            ratio = self._ratios[key] = _Ratio()
        else:
            self._ratios.move_to_end(key)
        ratio.observe(prompt_bytes=prompt_bytes, prompt_tokens=prompt_tokens)


class ExactPromptTokens:
    """A counter of prompt tokens by one tiktoken encoding, for deployments whose models share a vocabulary."""

    def __init__(self, encoding: "tiktoken.Encoding") -> None:
        self._encoding = encoding

    async def count(self, text: str) -> int | None:
        """Return the tokens of the text; None where it is too long to count. Long texts are counted in a thread."""
        if len(text) <= INLINE_BYTES_MAX:
            return self._tokens(text)
        if len(text) <= THREAD_BYTES_MAX:
            return await asyncio.to_thread(self._tokens, text)
        return None

    def _tokens(self, text: str) -> int:
        return len(self._encoding.encode_ordinary(text))


class OutputTokens:
    """A counter of output tokens, for answers whose usage the backend does not report. It is exact if a tiktoken
    encoding is configured; else it estimates by the tokens per byte learnt from prompts.
    """

    def __init__(self, learnt: LearntPromptTokens, exact: ExactPromptTokens | None) -> None:
        self._learnt = learnt
        self._exact = exact

    @property
    def is_exact(self) -> bool:
        return self._exact is not None

    def tokens_per_byte(self, tenant_id: str, model: str) -> float:
        """The ratio for text that is counted piece by piece. It only has to show that a piece has several tokens."""
        return min(self._learnt.tokens_per_byte(tenant_id, model), TOKENS_PER_BYTE)

    async def exact(self, text: str) -> int | None:
        """Return the tokens of the text; None where they cannot be counted."""
        return await self._exact.count(text) if self._exact is not None else None

    async def count(self, text: str, *, tenant_id: str, model: str) -> int:
        exact = await self.exact(text)
        if exact is not None:
            return exact
        return ceil(len(text.encode(errors="replace")) * self._learnt.tokens_per_byte(tenant_id, model))


@dataclass(frozen=True, slots=True)
class Ranks:
    """A parsed ranks file of tiktoken: the rank of each token (`merges`), and the file's SHA-256 in hex."""

    merges: dict[bytes, int]
    sha256: str


def read_ranks(path: Path) -> Ranks:
    """Read a .tiktoken file: a base64 token and its rank on each line. Raises ValueError."""
    try:
        with path.open("rb") as file:
            data = file.read(RANKS_FILE_BYTES_MAX)
        fields = [line.split() for line in data.splitlines() if line]
        merges = {base64.b64decode(token, validate=True): int(rank) for token, rank in fields}
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read: {error.strerror}") from error
    except (ValueError, binascii.Error) as error:
        raise ValueError(
            f"the file {path} is not a tiktoken ranks file (base64 token and rank on each line)"
        ) from error
    # Without them there are texts that cannot be encoded at all.
    if not all(bytes([byte]) in merges for byte in range(256)) or len(set(merges.values())) != len(merges):
        raise ValueError(f"the file {path} is not a ranks file of all 256 bytes with distinct ranks")
    return Ranks(merges=merges, sha256=hashlib.sha256(data).hexdigest())


def make_encoding(ranks: Ranks, *, encoding: str, pattern: str | None) -> "tiktoken.Encoding":
    """Build the named encoding or, where a pattern is given, an encoding of these ranks and the pattern. Raises
    ValueError.
    """
    import tiktoken  # noqa: PLC0415 - 2 MB, only for exact counts

    if pattern is not None:
        return tiktoken.Encoding("local", pat_str=pattern, mergeable_ranks=ranks.merges, special_tokens={})
    return tiktoken.Encoding(**_named(encoding, ranks))


def _named(encoding: str, ranks: Ranks) -> dict[str, Any]:
    def local_ranks(_url: str, expected_hash: str) -> dict[bytes, int]:
        if ranks.sha256 != expected_hash:
            raise ValueError(f"the ranks file is not that of {encoding}: its SHA-256 is {ranks.sha256}")
        return ranks.merges

    from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS  # type: ignore[import-untyped]  # noqa: PLC0415

    # tiktoken's own definition of the encoding, with the local file in place of its download.
    constructor = ENCODING_CONSTRUCTORS[encoding]
    offline = FunctionType(constructor.__code__, {**constructor.__globals__, "load_tiktoken_bpe": local_ranks})
    definition: dict[str, Any] = offline()
    return definition
