"""Mixture of experts: predicts an answer's length from answers to similar requests, with weights learnt online.

The best predictor of an answer's length differs: for one tenant it is the length of its prompts, for another the
endpoint that it calls or the limit that it sets. So each notion of similar requests is an expert. The expert looks at
the last answers in the request's context, such as "this tenant, prompts of this length", and predicts their median (or
another quantile). The experts' weights are learnt from their recent errors: first over all tenants, then, as its
answers arrive, for each tenant. The prediction is the weighted median of the experts, which a single expert that is far
off does not move.

An expert whose context was never seen does not vote ("specialists": Freund, Schapire, Singer and Warmuth, STOC '97).
The text of a prompt is not used. Tenants learn from each other here. A tenant that was forgotten starts anew if it
returns.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from math import log2

from policies.prediction.base import clamp_prediction
from policies.prediction.quantile import FIRST_TOKENS, OutputWindow
from policies.types import Request

QUANTILE = 0.5
WINDOW_OUTPUTS = 50  # remembered per context
CONTEXTS_MAX = 20_000  # remembered; the least recently updated is dropped first
ERROR_RATE_MIN = 0.02  # an error fades over about fifty answers
TENANT_PRIOR = 10.0  # answers of a tenant that count as much as what was learnt from all
SHARPNESS = 8.0  # an expert with twice the least error has a weight of 1/256
CAUTION = 2.0  # an expert that has seen one answer has a quarter of its weight
ERROR_TOKENS_MIN = 0.5  # below, experts are equally good
FINE = 8  # prompt lengths are told apart by an eighth of an octave
ALONE = -1  # the number of no tenant

EXPERTS = (
    "everyone",
    "model",
    "call",
    "prompt",
    "prompt, fine",
    "limit",
    "tenant",
    "tenant, call",
    "tenant, prompt",
    "tenant, prompt, fine",
    "tenant, limit",
)


def contexts(request: Request, tenant: int) -> tuple[Hashable, ...]:
    """The request's context for every expert, in the order of EXPERTS. `tenant` is the tenant's number."""
    model, call = request.model, (request.endpoint, request.uses_tools)
    fine = int(FINE * log2(request.prompt_tokens + 1))
    octave = fine // FINE
    limit = int(FINE * log2(request.output_tokens_max / request.choices + 1))
    return (
        0,
        (1, model),
        (2, model, call),
        (3, model, octave),
        (4, model, fine),
        (5, model, limit),
        (6, tenant),
        (7, tenant, model, call),
        (8, tenant, model, octave),
        (9, tenant, model, fine),
        (10, tenant, model, limit),
    )


class MixtureOfExperts:
    """A predictor that combines several experts. Each expert predicts from the answers to one kind of similar requests;
    the result is the weighted median of their predictions. Before any answer it is `FIRST_TOKENS` per choice. Mutable.
    """

    def __init__(self, *, quantile: float = QUANTILE, window_outputs: int = WINDOW_OUTPUTS) -> None:
        """`quantile` of the answers is predicted: 0.5 has the least error, a prediction by a higher quantile is seldom
        too low. `window_outputs` answers are kept per context.
        """
        self._quantile = quantile
        self._window_outputs = window_outputs
        self._contexts: dict[Hashable, _Context] = {}  # least recently updated first
        self._everyone = _Record(ALONE)
        self._tenants: dict[str, _Record] = {}
        self._numbers = count()

    def predict(self, request: Request) -> float:
        record = self._tenants.get(request.tenant_id, self._everyone)
        find, weights = self._contexts.get, record.weights
        opinions: dict[float, float] = {}
        for expert, key in enumerate(contexts(request, record.number)):
            context = find(key)
            if context is not None:
                # Experts with the same answers, as where all calls are of one model and endpoint, count as one.
                weight = weights[expert] * context.trust
                if weight > opinions.get(context.output, 0.0):
                    opinions[context.output] = weight
        return clamp_prediction(request, _weighted_median(opinions) if opinions else FIRST_TOKENS)

    def observed(self, request: Request, output_tokens: int) -> None:
        tenant = self._tenants.get(request.tenant_id)
        if tenant is None:
            tenant = self._tenants[request.tenant_id] = _Record(next(self._numbers))
        output = output_tokens / request.choices
        for expert, key in enumerate(contexts(request, tenant.number)):
            context = self._contexts.pop(key, None)
            if context is None:
                context = _Context(OutputWindow(self._window_outputs, self._quantile))
            else:
                error = self._error(context.output, output)
                self._everyone.was_wrong(expert, error)
                tenant.was_wrong(expert, error)
            context.add(output)
            self._contexts[key] = context
            if len(self._contexts) > CONTEXTS_MAX:
                del self._contexts[next(iter(self._contexts))]
        self._everyone.weigh(self._everyone)
        tenant.weigh(self._everyone)

    def forget(self, tenant_id: str) -> None:
        # Its contexts carry its number, which is never reused: they age out.
        self._tenants.pop(tenant_id, None)

    def _error(self, predicted: float, output: float) -> float:
        """The pinball loss, which the quantile minimises; for the median, half of the distance."""
        short = output - predicted
        return self._quantile * short if short > 0 else (self._quantile - 1.0) * short


@dataclass(slots=True)
class _Context:
    """The last answers in one context, and the prediction that follows from them."""

    window: OutputWindow
    output: float = 0.0
    trust: float = 0.0  # grows to 1 with the number of answers

    def add(self, output: float) -> None:
        self.window.add(output)
        self.output = self.window.quantile
        answers = len(self.window.arrived)
        self.trust = (answers / (answers + 1.0)) ** CAUTION


@dataclass(slots=True)
class _Record:
    """The recent error of every expert, for one tenant or for all, and the weights that follow from them."""

    number: int
    errors: list[float] = field(default_factory=lambda: [0.0] * len(EXPERTS))
    answers: list[int] = field(default_factory=lambda: [0] * len(EXPERTS))
    weights: list[float] = field(default_factory=lambda: [1.0] * len(EXPERTS))

    def was_wrong(self, expert: int, error: float) -> None:
        self.answers[expert] += 1
        rate = max(1.0 / self.answers[expert], ERROR_RATE_MIN)
        self.errors[expert] += rate * (error - self.errors[expert])

    def weigh(self, prior: "_Record") -> None:
        """Compute the weights from these errors, blended with the prior's weights while there are few answers."""
        errors = []
        for expert, error in enumerate(self.errors):
            answers = min(self.answers[expert], 1.0 / ERROR_RATE_MIN)
            blend = (answers * error + TENANT_PRIOR * prior.errors[expert]) / (answers + TENANT_PRIOR)
            errors.append(max(blend, ERROR_TOKENS_MIN))
        least = min(errors)
        self.weights = [(least / error) ** SHARPNESS for error in errors]


def _weighted_median(opinions: dict[float, float]) -> float:
    """The opinion up to which half of the weight lies; `opinions` maps each to its weight."""
    half = sum(opinions.values()) / 2.0
    below, opinion = 0.0, 0.0
    for opinion in sorted(opinions):
        below += opinions[opinion]
        if below >= half:
            break
    return opinion
