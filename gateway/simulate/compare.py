"""PolicyComparison: checks all options first, then runs one policy after another, and returns the findings.

Each policy gets its own engines and Scheduler, and reads the trace anew; the calls and their tenants are the same for
all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backends.engine.batching import BATCHING
from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from backends.engine.engine import BLOCK_TOKENS
from gateway.config import load_config
from gateway.simulate.choices import Choices, TenantChoices, read_weights
from gateway.simulate.options import RunOptions
from gateway.simulate.report.findings import Findings, Setting
from gateway.simulate.run import SimulatedFleet, simulate
from gateway.simulate.trace.arrivals import Replay
from gateway.simulate.trace.grouping import grouping
from gateway.simulate.trace.tenancy import tenant_rule
from gateway.simulate.trace.traces import Trace

Progress = Callable[[str, int], Callable[[int], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComparison(RunOptions, Choices):
    """The options of a comparison of policies on a trace; `run` makes the comparison."""

    paces: Sequence[float] = ()
    """Of each engine: its step times are multiplied by it."""
    coefficients: StepCoefficients | None = None
    """Of engines that have been measured; None: those of the table, by the name `engine`."""

    def run(self, progress: Progress) -> tuple[Setting, list[Findings]]:
        """Run every policy. Raises TraceError, ConfigError, OSError; ValueError for an unknown name."""
        config = load_config(self.config, check_files=False)
        choices = TenantChoices(
            configured={tenant.id: tenant for tenant in config.policy_tenants()},
            weights=read_weights(self.weights or ()),
            requests_per_minute_max=self.requests_per_minute_max,
        )
        policies = self.tried(config, self.pool, seed=self.seed)
        trace = Trace(self.trace)
        rule = self.tenants or trace.format.tenants
        tenant_rule(rule, seed=self.seed)
        fleet = self._fleet(trace)
        grouped = grouping(self.group_by, choices.find, config.policy_groups())
        runs: list[Findings] = []
        for policy in policies:
            replay = self._replay(fleet)
            calls = trace.calls(tenant_rule(rule, seed=self.seed), read_bytes=progress(policy.label, trace.bytes))
            arrivals = replay.arrivals(calls)
            runs.append(simulate(policy, arrivals, fleet=fleet, tenant_of=grouped.find, groups=grouped.groups))
        by = "as configured" if self.group_by is None else f"by the rule {self.group_by}"
        facts = {
            "trace": f"{self.trace.name} ({trace.format.name}), {self.speed:g} times as fast as it was",
            "calls": f"{runs[0].figures.requests}; left out: {replay.left_out.described()}",
            "tenants": f"{len(runs[0].tenants)}, by the rule {rule}",
            **({"groups": f"{len(runs[0].groups)}, {by}"} if runs[0].groups else {}),
            **_ends(runs[0]),
            **_described(fleet),
            "price": policies[0].price_text,
            "queue": f"{config.queue.tenant_requests_max} calls of a tenant at most, for {config.queue.wait_s_max:g} s",
            "seed": str(self.seed),
        }
        return Setting(facts), runs

    def _fleet(self, trace: Trace) -> SimulatedFleet:
        return SimulatedFleet(
            engine=self.engine,
            coefficients=self.coefficients or COEFFICIENTS[_listed("engine", self.engine, COEFFICIENTS)],
            engines=self.engines,
            paces=self.paces,
            batching=_listed("batching", self.batching, BATCHING),
            block_tokens=self.block_tokens or trace.format.block_tokens or BLOCK_TOKENS,
            requests_running_max=self.requests_running_max,
            kv_tokens_max=self.kv_tokens_max,
        )

    def _replay(self, fleet: SimulatedFleet) -> Replay:
        return Replay(
            request_tokens_max=fleet.request_tokens_max,
            block_tokens=None if fleet.reserves_by_oracle else fleet.block_tokens,
            output_tokens_max=self.output_tokens_max,
            speed=self.speed,
            model=self.model,
        )


def _ends(run: Findings) -> Mapping[str, str]:
    """The tenants that asked for the most and for the least service; the table shows their TTFT."""
    return {
        end: f"{name} asked for {run.tenants[name].asked_service:.0f} service in {run.tenants[name].requests} calls"
        for end, name in (("loudest", run.loudest), ("quietest", run.quietest))
    }


def _described(fleet: SimulatedFleet) -> Mapping[str, str]:
    return {
        "engines": f"{fleet.engines} of {fleet.engine}, {fleet.batching},"
        f" {fleet.kv_tokens} KV tokens in blocks of {fleet.block_tokens}, {fleet.requests_running_max} calls at most",
        "step times": fleet.coefficients.source,
        **(
            {"paces": f"step times of each times {', '.join(f'{each:.2f}' for each in fleet.paces)}"}
            if fleet.paces
            else {}
        ),
    }


def _listed(kind: str, name: str, table: Mapping[str, object]) -> str:
    if name not in table:
        raise ValueError(f"{kind}: there is no '{name}' (there are: {', '.join(table)})")
    return name
