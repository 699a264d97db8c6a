"""Exposition: the /metrics of several workers, added up to one page in Prometheus' text format.

Counters and histograms are summed. A gauge is summed, too, because each worker reports its own part; the gauges listed
in this module are exceptions. Only worker 0 reports queues, backends and service.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

OF_ONE: Final[Mapping[str, Callable[[float, float], float]]] = {
    "process_start_time_seconds": min,  # since when the gateway runs
    "process_max_fds": min,  # the worker that meets its limit first
    "fairlead_tenants": max,  # the schedulers', which worker 0 runs
    "fairlead_tenant_series": max,
    "fairlead_tenant_budget_used_ratio": max,
    "fairlead_group_budget_used_ratio": max,
    "fairlead_replicas": max,
    "fairlead_replicas_cut_off": max,
    "fairlead_config_reload_failed": max,
    "fairlead_cluster_epoch": max,
    "fairlead_cluster_round_trip_seconds": max,  # of the follower that is furthest
}
"""Gauges that are not summed."""
_SAMPLE: Final = re.compile(r"(\S+?(?:\{.*\})?) (\S+)$")


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list)  # its lines of help and type
    kind: str = "untyped"
    samples: dict[str, float] = field(default_factory=dict)  # by name and labels as text


Families = dict[str, _Family]


def parse(text: str) -> Families:
    """Parse the output of prometheus_client's `generate_latest`."""
    families: Families = {}
    family = _Family()
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, *rest = line.split(" ", 3)
            family = families.setdefault(name, _Family())
            family.head.append(line)
            if word == "TYPE":
                family.kind = rest[0]
        elif (sample := _SAMPLE.match(line)) is not None:
            family.samples[sample[1]] = float(sample[2])
    return families


def counted(families: Families) -> Families:
    """The counters and histograms only: the part that stays of a worker that has ended."""
    return {name: family for name, family in families.items() if family.kind in ("counter", "histogram")}


def summed(all_families: Iterable[Families]) -> Families:
    """The sum of all these families, as one set."""
    total: Families = {}
    for families in all_families:
        for name, family in families.items():
            into = total.setdefault(name, _Family(family.head, family.kind))
            join = OF_ONE.get(name, float.__add__)
            for sample, value in family.samples.items():
                known = into.samples.get(sample)
                into.samples[sample] = value if known is None else join(known, value)
    return total


def written(families: Families) -> str:
    """The families as text."""
    lines: list[str] = []
    for family in families.values():
        lines += family.head
        lines += [f"{sample} {value!r}" for sample, value in family.samples.items()]
    return "\n".join(lines) + "\n"
