"""Learning: the parts of a running gateway whose learnt state the checkpoint reads and restores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.api.token_counts import LearntPromptTokens, Ratio
from gateway.scheduling.pools import Pools
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.step_time import StepTime


@dataclass(frozen=True, slots=True)
class Learning:
    """The parts of one gateway that learn. `is_serving`: whether it accepts new calls."""

    pools: Pools
    backends: BackendPool
    prompt_tokens: LearntPromptTokens
    is_serving: Callable[[], bool]

    def checkpoint(self) -> Mapping[str, Callable[[], ServiceCheckpoint]]:
        """A function for each pool that returns the service its tenants have received."""
        return {name: dispatcher.checkpoint for name, dispatcher in self.pools.dispatchers().items()}

    def step_times(self) -> Sequence[tuple[BackendSpec, StepTime]]:
        """The step time models of all backends that have one."""
        return [
            (self.backends[load.backend_id].spec, load.step_time)
            for loads in self.backends.loads().values()
            for load in loads
            if load.step_time is not None
        ]

    def tokens_per_byte(self) -> Sequence[Ratio]:
        """The learnt ratios of prompts, the most recent one last."""
        return self.prompt_tokens.latest()
