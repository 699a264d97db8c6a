"""What one decision of every order costs, and what a full queue sheds, in microseconds of CPU, by waiting tenants.

    python tests/benchmarks/decision/orders.py [--tenants 10 1000 10000] [--decisions 500] [--orders vtc drr ...]

Every tenant has two requests waiting, each prompt of which has a prefix of its tenant's, and has been served before. A
decision is what a dispatch asks of an order: pick (with the prompts that have to be looked up for it), dispatched and
charged. For
shedding all tenants are of a tier that yields and the queue is full; one that is more important arrives.

Target: 50 us at 10,000 tenants, but for the orders that docs/fairness.md calls experimental.
"""

import argparse
import gc
from collections import OrderedDict
from collections.abc import Callable
from random import Random
from statistics import median, quantiles
from time import process_time_ns

from policies.accounts.ledger import InFlight
from policies.admission import BoundedQueues
from policies.capacity.prefix_index import PrefixIndex
from policies.fairness import FAIRNESS
from policies.fairness.slack import SlackCounter
from policies.reservation import Reservation
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Request, Tenant, Tier, Usage

ORDERS = {**FAIRNESS, "slack:arrival": lambda: SlackCounter(second_key="arrival")}
EXPERIMENTAL = ("equinox", "justitia")  # equinox takes minutes until 10,000 wait
PREFIX_BLOCKS = 8


class Queue:
    """One order, and what waits in it."""

    def __init__(self, make_order: Callable, tenants: int) -> None:
        self.rng, self.number, self.now = Random(1), 0, 0.0
        self.order, self.index = make_order(), PrefixIndex()
        if self.order.reads_prefixes:
            self.order.look_up_in(lambda request: self.index.longest(request)[0], self.index.changes)
        self.waiting: dict[str, OrderedDict[str, Request]] = {}
        for number in range(tenants):
            tenant_id = f"tenant-{number:05}"
            self.waiting[tenant_id] = OrderedDict()
            self.order.charged(tenant_id, self.rng.uniform(0, 20_000), 0.0)
            for _ in range(2):
                self.queue(tenant_id)
            self.order.joined(tenant_id, self.waiting[tenant_id])

    def queue(self, tenant_id: str) -> None:
        self.number += 1
        request = Request(
            f"request-{self.number}",
            tenant_id,
            "model",
            self.now,
            self.rng.randrange(20, 800),
            400,
            prefix=(*(hash((tenant_id, block)) for block in range(PREFIX_BLOCKS - 1)), self.number),
            prefix_block_tokens=16.0,
        )
        self.waiting[tenant_id][request.id] = request
        if self.order.follows_requests:
            self.order.queued(request, self.waiting[tenant_id], self.now)

    def decide(self) -> Request:
        request = self.order.pick(bool)
        assert request is not None, "all tenants wait"
        usage = Usage(request.prompt_tokens, 0, 0)
        entry = InFlight(request, "gpu", Reservation("default", 1, 1), 100.0, 100.0, usage, dispatched_at=self.now)
        if self.order.follows_requests:
            self.order.dispatched(entry)
        self.order.charged(request.tenant_id, request.prompt_tokens, 200.0)
        return request


def decisions(make_order: Callable, tenants: int, count: int) -> list[float]:
    queue, costs = Queue(make_order, tenants), []
    for _ in range(count):
        queue.now += 0.01
        began = process_time_ns()
        request = queue.decide()
        costs.append((process_time_ns() - began) / 1e3)
        del queue.waiting[request.tenant_id][request.id]
        queue.index.inserted(request, "gpu")
        queue.queue(request.tenant_id)
        queue.order.charged(request.tenant_id, 400.0, -200.0)
    return costs


def sheddings(tenants: int, count: int) -> list[float]:
    tiers = [Tier("default"), Tier("spot", priority=-1)]
    scheduler = Scheduler(
        tenants=[Tenant("vip"), *(Tenant(f"tenant-{number:05}", tier_id="spot") for number in range(tenants))],
        tiers=tiers,
        admission=(BoundedQueues(requests_max=2 * tenants),),
    )
    scheduler.load_changed([BackendLoad("gpu", requests_running_max=1)], 0.0)
    for number in range(2 * tenants):
        scheduler.submit(Request(f"r{number}", f"tenant-{number % tenants:05}", "m", 0.0, 100, 100), 0.0)
        scheduler.poll(0.0)
    costs = []
    for number in range(min(count, tenants)):
        began = process_time_ns()
        scheduler.submit(Request(f"vip-{number}", "vip", "m", 1.0, 100, 100), 1.0)
        costs.append((process_time_ns() - began) / 1e3)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tenants", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--decisions", type=int, default=500)
    parser.add_argument(
        "--orders", nargs="+", choices=ORDERS, default=[each for each in ORDERS if each not in EXPERIMENTAL]
    )
    options = parser.parse_args()
    print("us of CPU per decision, p50 (p99)")
    print("  ".join([f"{'order':>13}", *(f"{tenants:>16}" for tenants in options.tenants)]))
    measured = {
        name: lambda tenants, make=ORDERS[name]: decisions(make, tenants, options.decisions) for name in options.orders
    }
    measured["a shedding"] = lambda tenants: sheddings(tenants, options.decisions)
    for name, measure in measured.items():
        cells = []
        for tenants in options.tenants:
            costs = measure(tenants)
            cells.append(f"{median(costs):>7.1f} ({quantiles(costs, n=100)[98]:>6.0f})")
            gc.collect()
        print("  ".join([f"{name:>13}", *cells]))


if __name__ == "__main__":
    main()
