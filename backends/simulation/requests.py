"""Requests of a simulation: a request that is going to arrive, and its outcome."""

from dataclasses import dataclass
from itertools import chain

from policies.types import Reason, SloEnvelope

MODEL = "simulated"
BLOCK_BITS = 24  # of a block's number in a request or a session


@dataclass(frozen=True, slots=True)
class SessionPrompt:
    """A prompt of a simulated session, which begins with all earlier prompts and answers of the session. `among` is the
    number of a set of sessions: the first `shared_tokens` tokens (such as a system prompt) are the same in all sessions
    of the set.
    """

    session: int
    among: int = 0
    shared_tokens: int = 0

    def blocks(self, tokens: int, block_tokens: int) -> tuple[int, ...]:
        """The hashes of the full blocks in the prompt's first `tokens` tokens."""
        end = tokens // block_tokens
        shared = min(end, self.shared_tokens // block_tokens)
        of_all, own = (2 * self.among) << BLOCK_BITS, (2 * self.session + 1) << BLOCK_BITS
        return tuple(chain(range(of_all, of_all + shared), range(own + shared, own + end)))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is going to arrive in a simulation, at `at_s` seconds. Only oracles (a predictor or the engine's
    memory) read `output_tokens` in advance. `prefix` has chained hashes of the prompt's leading KV blocks; with
    `of_session`, the simulation makes them. The client disconnects `patience_s` seconds after the arrival if the answer
    is not complete.

    If `waited_for` is the `number` of another arrival, this one comes `think_s` seconds after the end of that one,
    instead of at `at_s`. Arrivals with the same `loop` are interchangeable: the first that ends counts as the one of
    the smallest number, the second as the next, and so on. If `came_before`, the request waited or ran already when the
    simulation began: its first token is not measured.
    """

    tenant_id: str
    at_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int
    prefix: tuple[int, ...] = ()
    patience_s: float | None = None
    model: str = MODEL
    endpoint: str = ""
    program_id: str | None = None
    uses_tools: bool = False
    envelope: SloEnvelope | None = None
    is_resumable: bool = False
    parent_id: str | None = None
    ends_session: bool = False
    number: int | None = None
    loop: int | None = None
    waited_for: int | None = None
    think_s: float = 0.0
    came_before: bool = False
    of_session: SessionPrompt | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The outcome of one simulated request.

    Latencies are in seconds from its arrival; None: the event never came. A request without a last token was not
    served. `rejected` is the reason for which the scheduler rejected it; None: it was not rejected.
    """

    tenant_id: str
    arrived_at: float
    prompt_tokens: int
    output_tokens: int
    first_token_latency_s: float | None
    total_latency_s: float | None
    rejected: Reason | None = None
    tpot_s: float | None = None
    """Time per output token since the first one came, and since it was due: both known of requests with an envelope
    and two tokens at least (answer_pace.py)."""
    tpot_envelope_s: float | None = None
    interruptions: int = 0
    came_before: bool = False
    backend_id: str | None = None
    """The engine that it was sent to last."""
    recomputed_tokens: int = 0
    """Tokens that were computed again because the request was interrupted."""

    @property
    def served(self) -> bool:
        """Whether the request's last token came."""
        return self.first_token_latency_s is not None and self.total_latency_s is not None
