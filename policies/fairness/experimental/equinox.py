"""Dual counter: per tenant the service that it received and its cost for the pool, ordered by a score of both.
Experimental.

Equinox (arXiv 2508.16646) orders tenants by a weighted sum of two counters. The user fairness counter (UFC) has
weighted tokens, discounted by how long the tenant waited for them. The resource fairness counter (RFC) has tokens per
second times utilisation. Its formulas are not published; this is a form that fits its abstract:

    UFC += (prompt + k * output) / (1 + delta * latency) / weight
    RFC += tokens per second * utilisation / weight
    score = alpha * UFC / max UFC + beta * RFC / max RFC,   least score first

latency is the time to the first token over its target. All of it is predicted at dispatch, from recent observations,
and replaced by the observed values at the end. A returning tenant is lifted to the least of each counter of the waiting
tenants, as in VTC. No bound is claimed. Costs O(waiting tenants) per decision.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Self

from policies.accounts.ledger import InFlight
from policies.fairness.base import Eligible, Fairness, Waiting, of_others
from policies.types import Request

ALPHA, BETA = 0.7, 0.3
DELTA = 0.1
OUTPUT_WEIGHT = 4.0  # k
TTFT_TARGET_S = 1.0  # of requests without an envelope
MEMORY = 9.0  # (9 * average + newest) / 10


class Score(NamedTuple):
    """The two counters of one tenant in DualCounter, each divided by the tenant's weight: `user` for the service that
    the tenant received, `resource` for the capacity that it used. A Score is also used for what one request adds to
    both.
    """

    user: float = 0.0
    resource: float = 0.0


@dataclass(slots=True)
class _Average:
    """A moving average of recent observations; `value` is the initial value until the first one."""

    value: float
    observed: bool = False

    def add(self, value: float) -> None:
        self.value = (MEMORY * self.value + value) / (MEMORY + 1) if self.observed else value
        self.observed = True


class DualCounter(Fairness):
    """The fairness policy Equinox: the tenant with the least weighted sum of its two counters (Score) is next."""

    follows_requests = True

    def __init__(
        self,
        *,
        alpha: float = ALPHA,
        beta: float = BETA,
        delta: float = DELTA,
        output_weight: float = OUTPUT_WEIGHT,
        ttft_target_s: float = TTFT_TARGET_S,
    ) -> None:
        super().__init__()
        self._alpha, self._beta, self._delta = alpha, beta, delta
        self._output_weight = output_weight
        self._ttft_target_s = ttft_target_s
        self._scores: dict[str, Score] = {}
        self._last_left_score = Score()  # of the last tenant to leave, as of now
        self._predicted: dict[str, dict[str, Score]] = {}  # by tenant and dispatched request
        self._first_token_s = _Average(0.0)  # from dispatch
        self._tokens_per_s = _Average(0.0)

    def counters(self, tenant_id: str) -> Score:
        return self._scores.get(tenant_id, Score())

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        if self._waiting:
            (user, resource), level = self.counters(tenant_id), self._least_score()
            self._scores[tenant_id] = Score(max(user, level.user), max(resource, level.resource))
        self._began(tenant_id, waiting)

    def left(self, tenant_id: str) -> None:
        self._ended(tenant_id)
        self._last_left_score = self.counters(tenant_id)

    def dispatched(self, entry: InFlight) -> None:
        of_tenant = self._predicted.setdefault(entry.request.tenant_id, {})
        if entry.request.id in of_tenant:
            return  # it was returned before, and is counted already
        waited_s = entry.dispatched_at - entry.request.arrived_at
        predicted = self._score(
            entry,
            output_tokens=entry.expected_output,
            ttft_s=waited_s + self._first_token_s.value,
            tokens_per_s=self._tokens_per_s.value,
        )
        of_tenant[entry.request.id] = predicted
        self._add(entry.request.tenant_id, predicted)

    def ended(self, entry: InFlight, now: float) -> None:
        predicted = self._predicted.get(entry.request.tenant_id, {}).pop(entry.request.id, Score())
        observed = self._observed(entry, now) if entry.service else Score()
        correction = Score(observed.user - predicted.user, observed.resource - predicted.resource)
        self._add(entry.request.tenant_id, correction)

    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        eligible = of_others(eligible, besides)
        waiting = [account for account in self._accounts.values() if account.is_waiting]
        scores = [self.counters(account.tenant_id) for account in waiting]
        user_max = max((score.user for score in scores), default=0.0) or 1.0
        resource_max = max((score.resource for score in scores), default=0.0) or 1.0
        ranked = [
            (self._alpha * user / user_max + self._beta * resource / resource_max, account.tenant_id, account.head())
            for account, (user, resource) in zip(waiting, scores, strict=True)
        ]
        return min((each for each in ranked if eligible(each[2])), default=(0.0, "", None))[2]

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        score, here, there = self.counters(tenant_id), self._score_level(), to._score_level()
        predicted = self._predicted.pop(tenant_id, {})
        super().hand_over(tenant_id, to, now)
        to._scores[tenant_id] = Score(
            max(0.0, score.user - here.user + there.user), max(0.0, score.resource - here.resource + there.resource)
        )
        to._predicted[tenant_id] = predicted

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        self._scores.pop(tenant_id, None)
        self._predicted.pop(tenant_id, None)

    def _score_level(self) -> Score:
        """The least of each counter of the waiting tenants; if none waits, the counters of the last one that waited."""
        return self._least_score() if self._waiting else self._last_left_score

    def _least_score(self) -> Score:
        waiting = [self.counters(account.tenant_id) for account in self._accounts.values() if account.is_waiting]
        return Score(min(score.user for score in waiting), min(score.resource for score in waiting))

    def _observed(self, entry: InFlight, now: float) -> Score:
        first_token_at = now if entry.first_token_at is None else entry.first_token_at
        output_tokens = entry.usage.output_tokens
        tokens_per_s = output_tokens / (now - first_token_at) if now > first_token_at else self._tokens_per_s.value
        if output_tokens:
            self._first_token_s.add(first_token_at - entry.dispatched_at)
            self._tokens_per_s.add(tokens_per_s)
        ttft_s = first_token_at - entry.request.arrived_at
        return self._score(entry, output_tokens=output_tokens, ttft_s=ttft_s, tokens_per_s=tokens_per_s)

    def _score(self, entry: InFlight, *, output_tokens: float, ttft_s: float, tokens_per_s: float) -> Score:
        envelope = entry.request.envelope
        target_s = (envelope and envelope.ttft_s) or self._ttft_target_s
        tokens = entry.usage.prompt_tokens + self._output_weight * output_tokens
        user = tokens / (1.0 + self._delta * ttft_s / target_s)
        return Score(user / entry.weight, tokens_per_s * entry.utilisation / entry.weight)

    def _add(self, tenant_id: str, score: Score) -> None:
        user, resource = self.counters(tenant_id)
        score = self._scores[tenant_id] = Score(user + score.user, resource + score.resource)
        if self._last_left is not None and self._last_left.tenant_id == tenant_id:
            self._last_left_score = score
