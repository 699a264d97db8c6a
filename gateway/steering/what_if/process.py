"""What-if process: it simulates a what-if, as `python -m gateway.steering.what_if.process SPEC`.

It yields to the gateway beside it by a niceness of 10. On standard output it writes JSON lines: {"progress": part}, and
at the end {"done": ...} or {"error": text}. It is a process of its own, because a simulation uses a core for seconds.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec
import orjson
from msgspec.structs import replace as replaced

from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from gateway.config import ConfigError, load_config
from gateway.simulate.choices import Choices
from gateway.simulate.compare import PolicyComparison
from gateway.simulate.options import Holding
from gateway.simulate.report.findings import Findings, Setting
from gateway.simulate.report.series import LatencyHistogram
from gateway.simulate.trace.traces import TraceError
from gateway.steering.what_if.changes import PlayedChanges
from gateway.steering.what_if.closed_loops import Waited, closed_loops, ended_at, loops_of_alike
from gateway.steering.what_if.messages import SESSIONS_AS_THEY_ARE, EngineSpec, SessionsChanged, WhatIfSpec
from policies.types import Outcome

NICE: Final = 10
MEASURED: Final = "measured"  # the engine whose step times the gateway has learnt
DEFAULT_ENGINE: Final = "a10g-llama2-7b"  # as of `fairlead simulate run`
TENANTS_SHOWN: Final = 200  # the loudest
RESCALED_MAX: Final = 2  # a second time, because slower steps also mean more requests in each
RUNS: Final = RESCALED_MAX + 2  # as it was, that with other step times, as asked
SCALE_LEAST: Final = 0.01  # a difference of step times below it is in the noise of the measurement
SCALE_MAX: Final = 10.0  # more is another machine: the setting says so
TRUSTED_MAX: Final = 2.0  # chosen: a replay that is further from what happened says little of what would have
TRUSTED_S: Final = 0.1  # times that differ by no more are alike for a reader
TRUSTED_CALLS_MIN: Final = 20  # of a tenant or backend: what fewer say is chance


def main(spec_file: Path) -> None:
    """Simulate the trace with the recorded settings and with the changed ones."""
    os.nice(NICE)
    spec = msgspec.json.decode(spec_file.read_bytes(), type=WhatIfSpec)
    try:
        _write({"done": _simulated(spec)})
    except (TraceError, ConfigError, ValueError, OSError) as error:
        _write({"error": str(error)})


def _simulated(spec: WhatIfSpec) -> dict[str, Any]:
    calls = [orjson.loads(line) for line in Path(spec.trace).read_bytes().splitlines()]
    happened = _happened(spec, calls)
    waited = _written(Path(spec.trace), calls)
    coefficients = scaled = _coefficients(spec.engine)
    setting, run = _run(spec, scaled, runs_before=0)
    measured, scale = _backend_tpot_s(calls), 1.0
    for number in range(1, RESCALED_MAX + 1):
        by = _scale(happened["tpot_s"], run.figures.tpot_s)
        paces = _paced(spec.engine, by or 1.0, measured, run.engine_tpot_s)
        if by is None and paces == spec.engine.paces:
            break
        scale *= by or 1.0
        spec = replaced(spec, engine=replaced(spec.engine, paces=paces))
        scaled = _scaled(coefficients, scale)
        setting, run = _run(spec, scaled, runs_before=number)
    policies = [spec.policy] if spec.policy else []
    weights = [f"{tenant}={weight!r}" for tenant, weight in spec.weights.items()]
    _, instead = _run(
        _changed(spec), scaled, runs_before=RUNS - 1, policies=policies, weights=weights, sessions=spec.sessions
    )
    return {
        "setting": dict(setting.facts),
        "closed_loop_calls": len(waited),
        "happened": happened,
        "replayed": _shown(run),
        "instead": _shown(instead),
        "trust": _trust(happened, _shown(run)),
    }


def _written(trace: Path, calls: Sequence[Mapping[str, Any]]) -> Mapping[int, Waited]:
    """Write the calls as a simulation reads them. Returns the closed loops among them."""
    calls = _completed(calls)
    waited = closed_loops(calls)
    trace.write_bytes(_replayed(calls, waited))
    return waited


def _changed(spec: WhatIfSpec) -> WhatIfSpec:
    """The specification with the asked settings in place of the recorded ones."""
    instead = spec.instead
    if instead is None:
        return spec
    if instead.trace is not None:
        trace = Path(instead.trace)
        _written(trace, [orjson.loads(line) for line in trace.read_bytes().splitlines()])
    engine = PlayedChanges(engines=instead.engines).engine(spec.engine)
    return replaced(spec, trace=instead.trace or spec.trace, config=instead.config, engine=engine)


def _run(
    spec: WhatIfSpec,
    coefficients: StepCoefficients,
    *,
    runs_before: int,
    policies: list[str] | None = None,
    weights: list[str] | None = None,
    sessions: SessionsChanged = SESSIONS_AS_THEY_ARE,
) -> tuple[Setting, Findings]:
    """Simulate the calls on engines with these coefficients."""
    engine = spec.engine
    kv_tokens = engine.kv_tokens_max or coefficients.kv_tokens_max
    comparison = PolicyComparison(
        trace=Path(spec.trace),
        config=Path(spec.config),
        pool=spec.pool,
        policies=policies,
        weights=weights,
        sessions=None if sessions.held is None else [Holding.HELD if sessions.held else Holding.FREE],
        session_room=sessions.room_ratio,
        engine=MEASURED,
        coefficients=coefficients,
        engines=engine.engines,
        paces=engine.paces,
        kv_tokens_max=round(kv_tokens * sessions.kv_scale),
        requests_running_max=engine.requests_running_max,
    )
    setting, (run,) = comparison.run(_progress(runs_before))
    return setting, run


def _coefficients(engine: EngineSpec) -> StepCoefficients:
    """The coefficients that the gateway has learnt, or those of the default engine."""
    default = COEFFICIENTS[DEFAULT_ENGINE]
    if engine.base_s is None:
        return replace(default, source=f"those of {DEFAULT_ENGINE}: the gateway knows none of these backends")
    return StepCoefficients(
        base_s=engine.base_s,
        token_s=engine.token_s,
        context_token_s=engine.context_token_s,
        request_s=engine.request_s,
        kv_tokens_max=engine.kv_tokens_max or default.kv_tokens_max,
        source="those that the gateway has learnt",
    )


def _scale(measured_tpot_s: float | None, simulated_tpot_s: float | None) -> float | None:
    """The factor for all step times with which a simulated token takes as long as a measured one; None: no factor.
    Calls that waited for nothing come at their recorded times. At backends that are full, a difference of a few percent
    decides whether a queue of these grows (docs/results/prediction.md).
    """
    if not measured_tpot_s or not simulated_tpot_s:
        return None
    scale = min(SCALE_MAX, max(1 / SCALE_MAX, measured_tpot_s / simulated_tpot_s))
    return None if abs(scale - 1) < SCALE_LEAST else scale


def _paced(engine: EngineSpec, by: float, measured: Mapping[str, float], simulated: Mapping[str, float]) -> list[float]:
    """The paces with which a token takes as long at each engine as at its backend, where all are scaled by `by`. The
    mean over all engines would not do: it depends on how many calls each of them has.
    """
    paces = list(engine.paces) or [1.0] * engine.engines
    for number, name in enumerate(engine.names, start=1):
        times = measured.get(name), simulated.get(f"engine-{number}")
        if None not in times:
            paces[number - 1] *= (_scale(*times) or 1.0) / by
    return paces if any(abs(each - 1.0) >= SCALE_LEAST for each in paces) else []


def _backend_tpot_s(calls: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The measured seconds per output token after the first, by backend, where enough calls say it."""
    backends: defaultdict[str, _Measured] = defaultdict(_Measured)
    for call in calls:
        if call.get("backend") is not None:
            backends[call["backend"]].add(call, 0.0)
    return {
        name: each.writing_s / each.later_tokens
        for name, each in backends.items()
        if each.later_tokens and each.served >= TRUSTED_CALLS_MIN
    }


def _scaled(coefficients: StepCoefficients, scale: float) -> StepCoefficients:
    source = f"{coefficients.source}, times {scale:.2f}, so that a token takes as long as was measured"
    return coefficients.scaled(scale, source=source)


def _trust(happened: Mapping[str, Any], replayed: Mapping[str, Any]) -> dict[str, Any]:
    """The difference between the recorded run and its replay with the recorded settings. It is in the tokens written
    per second, or in the median TTFT of a tenant.
    """
    found = [(_factor(happened["output_tokens_per_s"], replayed["output_tokens_per_s"]), "output_tokens_per_s", None)]
    for tenant, measured in happened["tenants"].items():
        simulated = replayed["tenants"].get(tenant)
        if simulated is None or min(measured["requests"], simulated["served"]) < TRUSTED_CALLS_MIN:
            continue
        times = measured["ttft_p50_s"], simulated["ttft_p50_s"]
        if None not in times:
            found.append((_factor(*(each + TRUSTED_S for each in times)), "ttft_p50_s", tenant))
    factor, figure, tenant = max(found, key=lambda each: each[0])
    is_enough = len(found) > 1
    return {
        "is_trusted": is_enough and factor <= TRUSTED_MAX,
        "factor": round(factor, 2),
        "factor_max": TRUSTED_MAX,
        "figure": figure if is_enough else "too_few_calls",
        "tenant": tenant,
    }


def _factor(one: float, other: float) -> float:
    """The ratio of the larger to the smaller value, at most 1,000."""
    return min(1000.0, max(one, other) / max(min(one, other), 1e-9))


def _progress(runs_before: int) -> Callable[[str, int], Callable[[int], None]]:
    """A function that reports the progress of a run, after `runs_before` of RUNS."""

    def begin(_label: str, total: int) -> Callable[[int], None]:
        read = 0

        def advanced(by: int) -> None:
            nonlocal read
            read += by
            _write({"progress": round((runs_before + min(1.0, read / max(1, total))) / RUNS, 3)})

        return advanced

    return begin


def _shown(run: Findings) -> dict[str, Any]:
    """A run without its curves, and with its loudest tenants only."""
    tenants = {name: asdict(each) for name, each in list(run.tenants.items())[:TENANTS_SHOWN]}
    sessions = None if run.sessions is None else asdict(run.sessions)
    return {"policy": run.policy, **asdict(run.figures), "tenants": tenants, "sessions": sessions}


def _completed(calls: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The calls, where those that run write as many tokens as their tenant's others do in the mean."""
    written: defaultdict[str, list[int]] = defaultdict(list)
    for call in calls:
        if call["output_tokens"] and not call["is_running"] and not call["came_before"]:
            written[call["tenant"]].append(call["output_tokens"])
    return [
        {**call, "output_tokens": min(call["output_tokens_max"], round(fmean(written[call["tenant"]])))}
        if call["is_running"] and written[call["tenant"]]
        else call
        for call in calls
    ]


def _replayed(calls: Sequence[Mapping[str, Any]], waited: Mapping[int, Waited]) -> bytes:
    """The lines of the calls, numbered in the order of their ends, each of which says for which one it waited. One that
    did has the time of the first call of its chain, and of its loop, so that the simulation has read it when it is due.
    """
    ends = sorted(range(len(calls)), key=lambda each: ended_at(calls[each]))
    numbers = {index: number for number, index in enumerate(ends)}
    loops = loops_of_alike(calls, waited)
    loop_begins: dict[int, float] = {}
    begins: dict[int, float] = {}
    lines: list[tuple[float, bytes]] = []
    for index in sorted(range(len(calls)), key=lambda each: calls[each]["arrival_s"]):
        call, waits, loop = calls[index], waited.get(index), loops.get(index)
        begins_s = call["arrival_s"] if waits is None else begins[waits.for_call]
        says = {} if waits is None else {"waited_for": numbers[waits.for_call], "think_s": waits.think_s}
        if loop is not None:
            says["loop"] = loop
            loop_begins_s = loop_begins.setdefault(loop, begins_s)
            if waits is not None:
                begins_s = min(begins_s, loop_begins_s)
        begins[index] = begins_s
        lines.append((begins_s, orjson.dumps({**call, "arrival_s": begins_s, "number": numbers[index], **says})))
    return b"\n".join(line for _, line in sorted(lines, key=lambda each: each[0])) + b"\n"


def _happened(spec: WhatIfSpec, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measured figures of the same calls, in the form of a run, without values that only a simulation knows."""
    config = load_config(Path(spec.config), check_files=False)
    price = Choices().tried(config, spec.pool)[0].price
    weights = {tenant.id: tenant.weight for tenant in config.policy_tenants()}
    tenants: dict[str, _Measured] = {}
    first_s, last_s = float("inf"), 0.0
    for call in calls:
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
        "tpot_s": together.writing_s / together.later_tokens if together.later_tokens else None,
        "throughput_tokens_per_s": together.tokens / duration_s,
        "output_tokens_per_s": together.output_tokens / duration_s,
        "tenants": {
            name: tenants[name].figures() | {"weight": weights.get(name, 1.0), "service": tenants[name].service}
            for name in loudest
        },
    }


class _Measured:
    """The measured values of one tenant. Mutable."""

    def __init__(self) -> None:
        self.requests = self.served = self.tokens = self.output_tokens = 0
        self.refused: Counter[str] = Counter()
        self.service = 0.0
        self.ttft = LatencyHistogram()
        self.writing_s, self.later_tokens = 0.0, 0  # of streams, from their first token to their last

    def add(self, call: Mapping[str, Any], service: float) -> None:
        self.requests += 1
        if call["is_running"]:
            if call["ttft_s"] is not None:
                self.ttft.add(call["ttft_s"])
            return
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
            self.writing_s += call["took_s"] - call["ttft_s"]
            self.later_tokens += max(0, call["output_tokens"] - 1)

    def merge(self, other: "_Measured") -> None:
        self.requests += other.requests
        self.served += other.served
        self.tokens += other.tokens
        self.output_tokens += other.output_tokens
        self.refused.update(other.refused)
        self.ttft.merge(other.ttft)
        self.writing_s += other.writing_s
        self.later_tokens += other.later_tokens

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
