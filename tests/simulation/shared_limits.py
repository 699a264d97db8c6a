"""Replicas that share a tenant's limits per minute, in virtual time: they meet, and calls come to each."""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from random import Random

from policies.admission import RateLimiter, SharedRateLimits
from policies.queues import PoolQueues
from policies.types import RateWindowReport, Request, Tenant

EXCHANGE_S = 0.2
ANSWER_S = 2.0


@dataclass
class Replica:
    name: str
    limiter: RateLimiter
    sharing: SharedRateLimits
    heard: dict[str, dict[str, RateWindowReport]] = field(default_factory=dict)


@dataclass
class SharedLimits:
    """`replicas` gateways that meet every MEET_S, one after another."""

    tenant: Tenant
    replicas: int = 3
    seed: int = 1
    output: int = 20  # of every answer
    expected: int = 20
    accepted: list[tuple[float, int]] = field(default_factory=list)  # when, and how many tokens
    by_replica: dict[str, int] = field(default_factory=dict)
    refused: int = 0

    def __post_init__(self):
        self.rng = Random(self.seed)
        self._words: dict[str, dict[str, RateWindowReport]] = {}
        self._events: list[tuple[float, int, object]] = []
        self._number = itertools.count()
        self.now = 1_000.0
        self.all = []
        for number in range(self.replicas):
            sharing = SharedRateLimits()
            sharing.replicas = self.replicas
            replica = Replica(f"gw{number}", RateLimiter(lambda _: float(self.expected), sharing=sharing), sharing)
            self.all.append(replica)
            self.at(self.now + EXCHANGE_S * self.rng.random(), lambda replica=replica: self._meets(replica))

    def at(self, when, what):
        heapq.heappush(self._events, (when, next(self._number), what))

    def run(self, seconds):
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = end

    def _meets(self, replica):
        replica.sharing.propose(replica.name, replica.heard, self.now)  # somebody has said something meanwhile
        heard = replica.heard = {name: words for name, words in self._words.items() if name != replica.name}
        self._words[replica.name] = replica.sharing.propose(replica.name, heard, self.now)
        replica.sharing.agreed()
        self.at(self.now + EXCHANGE_S * (1 + 0.1 * self.rng.uniform(-1, 1)), lambda: self._meets(replica))

    def words(self, name):
        """What a replica said last."""
        return self._words[name]

    def refusal(self, replica):
        """What a small call would be told at a replica."""
        request = Request("asked", self.tenant.id, "m", self.now, 20, 1_000)
        return self.all[replica].limiter.refuse(request, self.tenant, PoolQueues(), self.now)

    def call(self, replica, prompt):
        """One call comes to a replica; whether it was let in."""
        request = Request(f"r{next(self._number)}", self.tenant.id, "m", self.now, prompt, 1_000)
        limiter = self.all[replica].limiter
        if limiter.refuse(request, self.tenant, PoolQueues(), self.now) is not None:
            self.refused += 1
            return False
        limiter.admitted(request, self.tenant, self.now)
        tokens = prompt + self.output
        self.accepted.append((self.now, tokens))
        self.by_replica[f"gw{replica}"] = self.by_replica.get(f"gw{replica}", 0) + 1
        self.at(self.now + ANSWER_S, lambda: limiter.settled(request.id, tokens, self.now))
        return True

    def traffic(self, *, per_s, weights, prompts=(20, 200), until_s=1e9):
        """Calls come at random, to replicas by weight."""
        end = self.now + until_s

        def come():
            self.call(self.rng.choices(range(self.replicas), weights)[0], self.rng.randint(*prompts))
            if self.now < end:
                self.at(self.now + self.rng.expovariate(per_s), come)

        self.at(self.now + self.rng.expovariate(per_s), come)

    def most_in_a_minute(self):
        """Requests and tokens that were let in within any 60 s, at most."""
        window, tokens, most = deque(), 0, (0, 0)
        for at, amount in self.accepted:
            window.append((at, amount))
            tokens += amount
            while at - window[0][0] > 60.0:
                tokens -= window.popleft()[1]
            most = (max(most[0], len(window)), max(most[1], tokens))
        return most

    def rate(self, after_s):
        """Requests and tokens per minute that were let in after so long."""
        late = [(at, tokens) for at, tokens in self.accepted if at > 1_000.0 + after_s]
        minutes = (self.now - 1_000.0 - after_s) / 60
        return len(late) / minutes, sum(tokens for _, tokens in late) / minutes
