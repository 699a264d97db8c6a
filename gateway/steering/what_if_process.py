"""The process in which a what-if is simulated: `python -m gateway.steering.what_if_process SPEC`.

It yields to the gateway beside it by a niceness of 10. On standard output it writes JSON lines: {"progress": part},
and at the end {"done": ...} or {"error": text}. A process of its own, because a simulation takes a core for seconds.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from gateway.config import ConfigError, load_config
from gateway.simulate.choices import Choices
from gateway.simulate.compare import PolicyComparison
from gateway.simulate.findings import Findings
from gateway.simulate.series import LatencyHistogram
from gateway.simulate.traces import TraceError
from gateway.steering.what_if_spec import WhatIfSpec
from policies.types import Outcome

NICE: Final = 10
MEASURED: Final = "measured"  # the engine whose step times the gateway has learnt
DEFAULT_ENGINE: Final = "a10g-llama2-7b"  # as of `fairlead simulate run`
TENANTS_SHOWN: Final = 200  # the loudest


def main(spec_file: Path) -> None:
    """Simulate the trace as it was and as it would have been."""
    os.nice(NICE)
    spec = msgspec.json.decode(spec_file.read_bytes(), type=WhatIfSpec)
    try:
        _write({"done": _simulated(spec)})
    except (TraceError, ConfigError, ValueError, OSError) as error:
        _write({"error": str(error)})


def _simulated(spec: WhatIfSpec) -> dict[str, Any]:
    engine, name = spec.engine, DEFAULT_ENGINE
    if engine.base_s is not None:
        COEFFICIENTS[MEASURED] = StepCoefficients(
            base_s=engine.base_s,
            token_s=engine.token_s,
            context_token_s=engine.context_token_s,
            request_s=engine.request_s,
            kv_tokens_max=engine.kv_tokens_max or COEFFICIENTS[DEFAULT_ENGINE].kv_tokens_max,
            source="the step times that the gateway has learnt",
        )
        name = MEASURED
    policies = [spec.policy] if spec.policy else []
    weights = [f"{tenant}={weight!r}" for tenant, weight in spec.weights.items()]
    runs = []
    for number, (tried, weighed) in enumerate(((list[str](), list[str]()), (policies, weights))):
        comparison = PolicyComparison(
            trace=Path(spec.trace),
            config=Path(spec.config),
            pool=spec.pool,
            policies=tried,
            weights=weighed,
            engine=name,
            engines=engine.engines,
            kv_tokens_max=engine.kv_tokens_max,
            requests_running_max=engine.requests_running_max,
        )
        setting, (run,) = comparison.run(_progress(number / 2))
        runs.append(run)
    return {
        "setting": dict(setting.facts),
        "happened": _happened(spec),
        "replayed": _shown(runs[0]),
        "instead": _shown(runs[1]),
    }


def _progress(done: float) -> Callable[[str, int], Callable[[int], None]]:
    """Progress of the second half where the first is `done`."""

    def begin(_label: str, total: int) -> Callable[[int], None]:
        read = 0

        def advanced(by: int) -> None:
            nonlocal read
            read += by
            _write({"progress": round(done + min(1.0, read / max(1, total)) / 2, 3)})

        return advanced

    return begin


def _shown(run: Findings) -> dict[str, Any]:
    """A run without its curves, and its loudest tenants."""
    tenants = {name: asdict(each) for name, each in list(run.tenants.items())[:TENANTS_SHOWN]}
    return {"policy": run.policy, **asdict(run.figures), "tenants": tenants}


def _happened(spec: WhatIfSpec) -> dict[str, Any]:
    """What was measured of the same calls: as a run, without what only a simulation knows."""
    config = load_config(Path(spec.config), check_files=False)
    price = Choices().tried(config, spec.pool)[0].price
    weights = {tenant.id: tenant.weight for tenant in config.policy_tenants()}
    tenants: dict[str, _Measured] = {}
    first_s, last_s = float("inf"), 0.0
    for line in Path(spec.trace).read_bytes().splitlines():
        call = orjson.loads(line)
        # From the first arrival to the last end, as in a simulation: what is served then is of this time.
        first_s, last_s = min(first_s, call["arrival_s"]), max(last_s, call["arrival_s"] + call["took_s"])
        service = price.service(call["prompt_tokens"], 0, call["output_tokens"])
        tenants.setdefault(call["tenant"], _Measured()).add(call, service)
    together = _Measured()
    for each in tenants.values():
        together.merge(each)
    duration_s = max(1.0, last_s - first_s)
    loudest = sorted(tenants, key=lambda name: -tenants[name].service)[:TENANTS_SHOWN]
    return {
        "policy": config.scheduling_of(spec.pool).fairness.policy,
        "duration_s": duration_s,
        **together.figures(),
        "throughput_tokens_per_s": together.tokens / duration_s,
        "output_tokens_per_s": together.output_tokens / duration_s,
        "tenants": {
            name: tenants[name].figures() | {"weight": weights.get(name, 1.0), "service": tenants[name].service}
            for name in loudest
        },
    }


class _Measured:
    """What was measured of one tenant. Mutable."""

    def __init__(self) -> None:
        self.requests = self.served = self.tokens = self.output_tokens = 0
        self.refused: Counter[str] = Counter()
        self.service = 0.0
        self.ttft = LatencyHistogram()

    def add(self, call: Mapping[str, Any], service: float) -> None:
        self.requests += 1
        outcome = call["outcome"]
        self.served += outcome == Outcome.COMPLETED
        if outcome not in tuple(Outcome):
            self.refused[outcome or "unknown"] += 1
            return
        self.service += service
        self.tokens += call["prompt_tokens"] + call["output_tokens"]
        self.output_tokens += call["output_tokens"]
        if call["ttft_s"] is not None:
            self.ttft.add(call["ttft_s"])

    def merge(self, other: "_Measured") -> None:
        self.requests += other.requests
        self.served += other.served
        self.tokens += other.tokens
        self.output_tokens += other.output_tokens
        self.refused.update(other.refused)
        self.ttft.merge(other.ttft)

    def figures(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "served": self.served,
            "refused": dict(sorted(self.refused.items())),
            "ttft_p50_s": self.ttft.quantile(0.5),
            "ttft_p99_s": self.ttft.quantile(0.99),
        }


def _write(line: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
