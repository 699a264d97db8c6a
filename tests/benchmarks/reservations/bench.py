"""What is reserved of a KV cache, and what that leaves unused, under a backlog: both rules, lengths predicted.

    python -m tests.benchmarks.reservations.bench [--seconds 30] [--warm-up 60] [--tenants 20 200]

Tokens a second of one engine that tenants keep full, over those of a gateway that knows every length, reserves by the
fullest moment and has no headroom; the most and the mean that was reserved of the KV cache, and what was in use;
preemptions over answers. The prediction is the default.
"""

import argparse

from policies.capacity.backend import KV_RULES
from tests.simulation.reservations import WORKLOADS, known, play


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--warm-up", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tenants", type=int, nargs="+", default=[20, 200])
    options = parser.parse_args()
    times = {"warm_up_s": options.warm_up, "watched_s": options.seconds}
    print(f"{'':34}  tenants  rule  throughput  reserved: most  mean  in use  preemptions")
    for tenants in options.tenants:
        for workload in WORKLOADS:
            best = known(workload, tenants, **times)
            for rule in KV_RULES:
                found = play(workload, tenants, **times, kv_rule=rule)
                print(
                    f"{workload:34}  {tenants:>7}  {rule:>4}  {found.tokens_per_s / best.tokens_per_s:>10.3f}"
                    f"  {found.reserved_max:>14.2f}  {found.reserved_mean:>4.2f}  {found.used_mean:>6.2f}"
                    f"  {found.preemptions_ratio:>11.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
