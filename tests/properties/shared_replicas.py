"""Replicas that share a limit of requests per minute, step by step."""

from policies.admission import RateLimiter, SharedRateLimits
from policies.queues import PoolQueues
from policies.types import Request, Tenant


class SharedReplicas:
    def __init__(self, limit, *, replicas, retries):
        """With `retries` every meeting begins with what was heard the last time."""
        self.tenant = Tenant("A", requests_per_minute_max=limit)
        self.retries = retries
        self.now = 1_000.0
        self.words = {}
        self.heard = [{} for _ in range(replicas)]
        self.accepted = []
        self.made = 0
        self.sharing = [SharedRateLimits() for _ in range(replicas)]
        for each in self.sharing:
            each.replicas = replicas
        self.limiters = [RateLimiter(lambda _: 0.0, sharing=each) for each in self.sharing]

    def calls(self, replica, count):
        for _ in range(count):
            self.made += 1
            request = Request(f"r{self.made}", "A", "m", self.now, 1, 1)
            if self.limiters[replica].refuse(request, self.tenant, PoolQueues(), self.now) is None:
                self.limiters[replica].admitted(request, self.tenant, self.now)
                self.accepted.append(self.now)

    def meets(self, replica):
        name, sharing = f"gw{replica}", self.sharing[replica]
        if self.retries:
            sharing.propose(name, self.heard[replica], self.now)
        self.heard[replica] = {other: words for other, words in self.words.items() if other != name}
        self.words[name] = sharing.propose(name, self.heard[replica], self.now)
        sharing.agreed()

    def in_the_last_minute(self):
        return sum(self.now - at <= 60.0 for at in self.accepted)
