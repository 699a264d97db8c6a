"""What is reserved of a KV cache, and what that leaves unused, under a backlog: all rules, lengths predicted.

    python -m tests.benchmarks.reservations.bench [--seconds 30] [--warm-up 60] [--tenants 20 200] [--zipf]

Tokens a second of one engine that tenants keep full, over those of a gateway that knows every length, reserves by the
fullest moment and has no headroom; the most and the mean that was reserved of the KV cache, and what was in use;
preemptions over answers. The prediction is the default. With --zipf: 200 tenants under Zipf load beside the engine
alone, 30 s to 90 s of three seeds.
"""

import argparse

from policies.capacity.backend import KV_RULES
from tests.evidence.measures import quantile
from tests.simulation.reservations import WORKLOADS, ZIPF_TENANTS, known, play, watch, zipf


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--warm-up", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tenants", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--zipf", action="store_true")
    options = parser.parse_args()
    if options.zipf:
        under_zipf()
        return
    times = {"warm_up_s": options.warm_up, "watched_s": options.seconds}
    print(f"{'':34}  tenants  rule  throughput  reserved: most  mean  in use  preemptions")
    for tenants in options.tenants:
        for workload in WORKLOADS:
            best = known(workload, tenants, **times)
            for rule in KV_RULES:
                found = play(workload, tenants, **times, kv_rule=rule)
                print(
                    f"{workload:34}  {tenants:>7}  {rule:>8}  {found.tokens_per_s / best.tokens_per_s:>10.3f}"
                    f"  {found.reserved_max:>14.2f}  {found.reserved_mean:>4.2f}  {found.used_mean:>6.2f}"
                    f"  {found.preemptions_ratio:>11.4f}",
                    flush=True,
                )


def under_zipf() -> None:
    print("seed  rule      tokens/s  in use   due  preemptions  light TTFT p50    p90    p99")
    for seed in (1, 2, 3):
        for rule in ("direct", *KV_RULES):
            found = watch(
                zipf(seed, 90.0),
                ZIPF_TENANTS,
                warm_up_s=30.0,
                watched_s=60.0,
                is_direct=rule == "direct",
                kv_rule="sum" if rule == "direct" else rule,
            )
            p50, p90, p99 = (quantile(found.light_ttft_s, part) for part in (0.5, 0.9, 0.99))
            print(
                f"{seed:>4}  {rule:8}  {found.tokens_per_s:>8.0f}  {found.used_mean:>6.2f}  {found.due_max:>4.2f}"
                f"  {found.preemptions_ratio:>11.4f}  {p50:>14.2f}  {p90:>5.2f}  {p99:>5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
