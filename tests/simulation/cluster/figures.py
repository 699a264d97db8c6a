"""Fairness over members, in figures: python -m tests.simulation.cluster.figures"""

import argparse
from collections import Counter
from random import Random

from backends.simulation.requests import RequestRecord
from policies.types import Tenant
from tests.simulation.cluster.world import PRICE, ClusterWorld, Settings
from tests.simulation.fairness_metric import Windows, service_difference

WARM_UP_S = 8.0


def own_member(chance: Random, names: list[str], tenant_id: str) -> str:
    """Tenant a enters at one member, all others at another."""
    return names[tenant_id != "a"]


def weights_at_different_members(duration_s: float = 60.0, seed: int = 1) -> float:
    """What a tenant of weight 4 at one member receives over what one of weight 1 at another member does."""
    tenants = (Tenant("a", weight=4.0), Tenant("b"))
    world = ClusterWorld(
        Settings(
            members=2, backends=2, slots=8, tenants=tenants, duration_s=duration_s, rate_per_s=70.0, has_store=False,
            spread=own_member,
        ),
        seed,
        [],
    )  # fmt: skip
    world.run(duration_s)
    received = Counter()
    for client in world.clients:
        if client.ended == "completed" and client.ended_at > WARM_UP_S:
            received[client.request.tenant_id] += PRICE.service(client.request.prompt_tokens, 0, client.output_tokens)
    return received["a"] / received["b"]


def service_difference_of(members: int, duration_s: float = 60.0, seed: int = 1) -> float:
    """The average service difference of 40 tenants that enter at random; the requests do not depend on `members`."""
    tenants = tuple(Tenant(f"t{number:02}") for number in range(40))
    chance = Random(seed)
    busy = [chance.uniform(0.2, 1.8) for _ in tenants]
    world = ClusterWorld(
        Settings(
            members=members, backends=4, slots=8, tenants=tenants, duration_s=duration_s, rate_per_s=75.0,
            has_store=False, demand=tuple(busy),
        ),
        seed,
        [],
    )  # fmt: skip
    world.run(duration_s + 6.0)
    records = [
        RequestRecord(
            client.request.tenant_id,
            client.arrived_at,
            client.request.prompt_tokens,
            client.output_tokens,
            client.run.first_at - client.arrived_at,
            client.run.ends_at - client.arrived_at,
        )
        for client in world.clients
        if client.ended == "completed"
    ]
    windows = Windows(duration_s=duration_s, warm_up_s=WARM_UP_S, steps=12, window_s=10.0, ends_at_min_s=0.0)
    return service_difference(records, price=PRICE, windows=windows).average


def main() -> None:
    argparse.ArgumentParser(prog="tests.simulation.cluster.figures", description=__doc__).parse_args()
    for seed in range(3):
        one, four = (service_difference_of(members, seed=seed) for members in (1, 4))
        print(
            f"seed {seed}: weights 4:1 at two members receive {weights_at_different_members(seed=seed):.3f} : 1; "
            f"40 tenants, average service difference: one member {one:.1f}, four {four:.1f}, ratio {four / one:.3f}"
        )


if __name__ == "__main__":
    main()
