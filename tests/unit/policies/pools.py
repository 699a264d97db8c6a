"""A pool in miniature: builders with defaults, so that a test says only what it is about."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from policies.accounts.cost import LinearPrice
from policies.prediction import NoPrediction
from policies.scheduler import Scheduler
from policies.types import (
    Action,
    BackendLoad,
    BackendView,
    Cause,
    Dispatch,
    Outcome,
    Preempt,
    Reject,
    Request,
    Tenant,
    TenantView,
    Tier,
    Usage,
)
from tests.loopback import LoopbackScheduler


class Pool:
    """A scheduler with one backend by default, driven with short calls at a time that the test moves."""

    make_scheduler: Callable[..., Any] = Scheduler

    def __init__(
        self,
        *,
        tenants: Sequence[Tenant] = (Tenant("A"), Tenant("B"), Tenant("C")),
        tiers: Sequence[Tier] = (Tier("default"),),
        loads: Iterable[BackendLoad] = (BackendLoad("gpu", requests_running_max=2),),
        **options,
    ) -> None:
        options.setdefault("prediction", NoPrediction())
        options.setdefault("price", LinearPrice(prompt=1, cached_prompt=1, output=2))
        options.setdefault("share_ratio_max", 1.0)
        self.now = 0.0
        self.scheduler = self.make_scheduler(tenants=tenants, tiers=tiers, **options)
        self.prompts: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        self.causes: dict[str, Cause] = {}  # of preemptions that are not answered yet
        self.measure(*loads)

    def measure(self, *loads: BackendLoad) -> None:
        self.scheduler.load_changed(loads, self.now)

    def send(self, tenant_id: str, request_id: str, prompt: int = 1, output_max: int = 100, **fields) -> None:
        self.prompts[request_id], self.outputs[request_id] = prompt, 0
        request = Request(
            id=request_id,
            tenant_id=tenant_id,
            model="m",
            arrived_at=self.now,
            prompt_tokens=prompt,
            output_tokens_max=output_max,
            **fields,
        )
        self.scheduler.submit(request, self.now)

    def poll(self) -> list[Action]:
        """All that can be decided now, by as many polls as it takes."""
        actions = self.scheduler.poll(self.now)
        while (wakeup_at := self.scheduler.next_wakeup()) is not None and wakeup_at <= self.now:
            actions += self.scheduler.poll(self.now)
        self.causes |= {action.request_id: action.cause for action in actions if isinstance(action, Preempt)}
        return actions

    def dispatched(self) -> list[str]:
        """Ids dispatched now, in order; nothing may be refused."""
        actions = self.poll()
        assert all(isinstance(action, Dispatch) for action in actions), actions
        return [action.request_id for action in actions]

    def refused(self) -> dict[str, str]:
        return {action.request_id: action.reason for action in self.poll() if isinstance(action, Reject)}

    def emit(self, request_id: str, tokens: int = 1) -> None:
        """The request produces tokens one by one."""
        for _ in range(tokens):
            self.outputs[request_id] += 1
            usage = Usage(self.prompts[request_id], 0, self.outputs[request_id])
            self.scheduler.tokens(request_id, usage, self.now)

    def report(self, request_id: str, prompt: int, output: int, cached: int = 0) -> None:
        """The backend reports the request's usage so far."""
        self.prompts[request_id], self.outputs[request_id] = prompt, output
        self.scheduler.tokens(request_id, Usage(prompt, cached, output), self.now)

    def come_back(self, request_id: str, hold_s: float = 0.0) -> None:
        """The request leaves its backend: as it was asked to, or, with `hold_s`, because that did not take it."""
        self.scheduler.returned(request_id, self.now, hold_s, cause=self._cause(request_id, hold_s))

    def cut(self, request_id: str, tokens: int = 0, hold_s: float = 0.0) -> None:
        """The request stops after so many more tokens, to be continued; why, as `come_back` says."""
        cause = self._cause(request_id, hold_s)
        self.outputs[request_id] += tokens
        usage = Usage(self.prompts[request_id], 0, self.outputs[request_id])
        self.scheduler.interrupted(request_id, usage, self.now, hold_s, cause)

    def _cause(self, request_id: str, hold_s: float) -> Cause:
        asked = self.causes.pop(request_id, Cause.FAILED)
        return Cause.FAILED if hold_s else asked

    def change(self, *changed: Tenant, removed: Sequence[str] = (), tiers: Sequence[Tier] = ()) -> None:
        self.scheduler.tenants_changed(changed=changed, removed=removed, tiers=tiers, now=self.now)

    def end(self, request_id: str, outcome: Outcome = Outcome.COMPLETED) -> None:
        self.scheduler.finished(request_id, outcome, self.now)

    def placed(self) -> dict[str, str]:
        """What is sent where now, by request id."""
        return {action.request_id: action.backend_id for action in self.poll() if isinstance(action, Dispatch)}

    def serve_all(self) -> list[str]:
        """Everything that waits, in the order in which it goes through its seats."""
        served: list[str] = []
        while placed := self.placed():
            served += placed
            for request_id in placed:
                self.end(request_id)
        return served

    def backend(self, backend_id: str = "gpu") -> BackendView:
        return self.scheduler.snapshot(self.now).backends[backend_id]

    def tenant(self, tenant_id: str) -> TenantView:
        return self.scheduler.snapshot(self.now).tenants[tenant_id]

    def counter(self, tenant_id: str) -> float:
        return self.tenant(tenant_id).counter

    def rank(self, tenant_id: str) -> float:
        return self.tenant(tenant_id).rank

    def service(self, tenant_id: str) -> float:
        return self.tenant(tenant_id).service


class SharedPool(Pool):
    """The same, with a scheduler that another process leads."""

    make_scheduler = LoopbackScheduler


POOLS = {"local": Pool, "shared": SharedPool}
