"""FairBatching as vLLM's scheduler: `--scheduler-cls fairlead_vllm.scheduler.FairScheduler`, for vLLM 0.32.

vLLM's own `schedule()` still does all of the work: memory, preemption, prefix hits, encoders, grammars, drafts. Before
it runs, policies/batching/fair.py divides the step among the requests; while it runs, no request gets more tokens than
its part. The hook is `_reserve_prefill_lookahead`, which vLLM calls last to ask how many tokens a request may have,
running or waiting: zero leaves a running request out of this step, and ends the scan of the waiting ones. Tokens that
vLLM cannot grant (no block, no slot) go to no other request: the step is then shorter.

While no request in the engine has a target, vLLM forms the step itself; only the order of the waiting queue differs.
The class derives from the asynchronous scheduler, which serves synchronous engines as well.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from math import inf
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from backends.vllm_plugin.engine_accounts import EngineAccounts, RequestAccount
from backends.vllm_plugin.options import read_options
from backends.vllm_plugin.queue_order import TenantOrder
from backends.vllm_plugin.reports import EngineState, carried
from policies.batching.fair import Decode, Prefill
from policies.batching.pab import DueDecode
from policies.capacity.prefix_index import leading_blocks

logger = init_logger("vllm.fairlead")
HOOK = "_reserve_prefill_lookahead"


class FairScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM is not there where types are checked
    """vLLM's scheduler with the batching rule FairBatching. Raises RuntimeError if this vLLM lacks the method named by
    HOOK, with which FairBatching limits the tokens of each request, or if chunked prefill is off.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not hasattr(Scheduler, HOOK):
            raise RuntimeError(f"fairlead-vllm is for vLLM 0.32: this one's scheduler has no {HOOK}")
        if not self.scheduler_config.enable_chunked_prefill:
            raise RuntimeError("fairlead-vllm cuts prompts: it needs --enable-chunked-prefill")
        options = read_options(os.environ)
        if self.policy != SchedulingPolicy.FCFS:
            options = replace(options, order=self.policy.value)
        self._accounts = EngineAccounts(options, time.monotonic, lambda each: self._glance(self.requests[each]))
        self._granted: dict[str, int] | None = None  # of this step; None: vLLM decides
        self._queue_changed = False
        self._turned_away_at_blocks = -1  # free blocks when the head of the queue found no room
        logger.info("FairBatching, waiting requests by %s", options.order)

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if self.requests.get(request.request_id) is request:  # else it is one more input of a session
            extra_args = None if request.sampling_params is None else request.sampling_params.extra_args
            arrived_s_ago = max(0.0, time.time() - request.arrival_time)
            self._accounts.arrived(
                request.request_id, extra_args, arrived_s_ago=arrived_s_ago, prompt_tokens=request.num_prompt_tokens
            )
            self._queue_changed = True

    def schedule(self, throttle_prefills: bool = False) -> Any:  # noqa: FBT001, FBT002 - vLLM's signature
        starts_at = self._accounts.begin_step()
        waiting = self._order_waiting()
        self._granted = self._grants(waiting, starts_at)
        output = super().schedule(throttle_prefills)
        self._note_turned_away(waiting, output)
        self._granted = None
        scheduled = output.num_scheduled_tokens
        if scheduled:
            self._accounts.scheduled(
                id(output),
                starts_at,
                new_tokens=output.total_num_scheduled_tokens,
                context_tokens=sum(self.requests[each].num_computed_tokens for each in scheduled),
                requests=len(scheduled),
            )
        for new in output.scheduled_new_reqs:
            request = self.requests[new.req_id]
            if not request.num_preemptions:
                self._accounts.begun(new.req_id, request.num_prompt_tokens - new.num_computed_tokens)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        now = self._accounts.ended(id(scheduler_output))
        touched = list(self._with_entries(scheduler_output.num_scheduled_tokens))
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request, entry in touched:
            self._accounts.produced(request.request_id, entry, request.num_output_tokens, now)
        self._accounts.rest(
            is_idle=not self.get_num_unfinished_requests(),
            prompts_wait=bool(self.waiting) or any(each.is_prefill_chunk for each in self.running),
            slack_s=min((self._slack_s(each, now) for each in self.running), default=inf),
        )
        return outputs

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        stats = super().make_stats(*args, **kwargs)
        if stats is not None and (steps := self._accounts.untold(is_idle=not self.running)):
            stats.waiting_lora_adapters[carried(steps, self._state())] = 0
        return stats

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._accounts.forget(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._queue_changed = True
        super()._preempt_request(request, *args, **kwargs)

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        granted = tokens if self._granted is None else self._granted.get(request.request_id, 0)
        if granted >= tokens:
            return tokens
        if granted and self.need_mamba_block_aligned_split:  # a cut elsewhere would lose the state
            known = num_computed_tokens - request.num_computed_tokens
            granted = self._mamba_block_aligned_split(request, granted, known)
        return int(super()._reserve_prefill_lookahead(request, num_computed_tokens, granted))

    def _order_waiting(self) -> list[Request]:
        """Order the waiting queue, unless vLLM orders it by priority. Return all waiting requests, next first."""
        waiting = list(self.waiting)
        if self.policy == SchedulingPolicy.FCFS:
            ordered = self._ordered(waiting)
            if ordered is not waiting:
                waiting = ordered
                self.waiting.clear()
                self.waiting.extend(waiting)
        if self._queue_changed:
            self._queue_changed, self._turned_away_at_blocks = False, -1
        return [*self.kv_holding_waiting, *waiting]

    def _ordered(self, waiting: list[Request]) -> list[Request]:
        tenants = self._accounts.tenants
        if tenants is None:
            # Due times of waiting requests are fixed: their order changes only when the queue changes.
            return sorted(waiting, key=lambda each: self._slack_s(each, 0.0)) if self._queue_changed else waiting
        chosen = self._chosen(tenants, {each.request_id: each for each in waiting})
        begun = [each for each in waiting if tenants.has_begun(each.request_id)]  # preempted, and charged already
        first = {each.request_id for each in (*begun, *chosen)}
        return [*begun, *chosen, *(each for each in waiting if each.request_id not in first)]

    def _chosen(self, tenants: TenantOrder, waiting: Mapping[str, Request]) -> list[Request]:
        """Return the waiting requests that are next in the order of tenants, as many as this step can begin. Blocked
        requests, which vLLM passes over, are in addition to these.
        """
        slots = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        chosen: list[Request] = []
        tokens = 0
        choices = tenants.choices()
        while slots > 0 and tokens < self.max_num_scheduled_tokens and (name := next(choices, None)) is not None:
            request = waiting.get(name)
            if request is None:  # it holds memory already, and is ahead
                continue
            chosen.append(request)
            if not self._is_blocked_waiting_status(request.status):
                slots -= 1
                tokens += request.num_prompt_tokens
        return chosen

    def _grants(self, waiting: Sequence[Request], now: float) -> dict[str, int] | None:
        if not self._accounts.promised:
            return None
        decodes: list[Decode[str]] = []
        prefills: list[Prefill[str]] = []
        for request, entry in self._with_entries(each.request_id for each in self.running):
            wanted = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
            if wanted <= 0:
                continue
            computed, slack_s = request.num_computed_tokens, self._slack_s(request, now)
            if request.is_prefill_chunk:
                prefills.append(Prefill(request.request_id, slack_s, computed, wanted))
            else:
                tpot_s = entry.promise.tpot_s
                decodes.append(Decode(request.request_id, slack_s, tpot_s, computed + wanted, wanted))
        prefills += self._seatable(waiting, now)
        return self._accounts.divide(decodes, prefills, tokens_max=self.max_num_scheduled_tokens)

    def _seatable(self, waiting: Sequence[Request], now: float) -> Iterator[Prefill[str]]:
        """Yield the requests that may begin in this step, in queue order: the head, and as many more as have room. Time
        that is kept for a prompt without room is lost to the answers. So after the head found no room, no request is
        offered until blocks are freed or the queue changes.
        """
        blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        if blocks <= self._turned_away_at_blocks:
            return
        self._turned_away_at_blocks = -1
        slots = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        ranked = self._accounts.tenants is not None or self.policy != SchedulingPolicy.FCFS
        tokens = 0
        for rank, request in enumerate(waiting):
            if rank >= slots or tokens >= self.max_num_scheduled_tokens:
                return
            if self._is_blocked_waiting_status(request.status):
                continue
            computed = request.num_computed_tokens or self._cached_tokens(request)
            blocks -= -(-(request.num_tokens - computed) // self.block_size)
            if tokens and blocks < 0:
                return
            remaining = request.num_tokens - computed
            tokens += remaining
            slack_s = self._slack_s(request, now)
            yield Prefill(request.request_id, slack_s, computed, remaining, rank + 1 if ranked else 0)

    def _note_turned_away(self, waiting: Sequence[Request], output: Any) -> None:
        if self._granted is None:
            return
        head = next((each for each in waiting if self._granted.get(each.request_id)), None)
        if head is not None and head.request_id not in output.num_scheduled_tokens:
            self._turned_away_at_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()

    def _cached_tokens(self, request: Request) -> int:
        if self.enable_kv_cache_events and getattr(request, "kv_cache_report_mode", None) == "full":
            return 0  # the lookup would publish KV events
        return int(self.kv_cache_manager.get_computed_blocks(request)[1])

    def _glance(self, request: Request) -> int:
        """Return the cached tokens of a waiting request, at low cost because an order asks for many requests at a time.
        A few lookups are enough if there is one group of plain blocks: memory is evicted from the ends of prompts, so a
        cached block implies all before it.
        """
        manager = self.kv_cache_manager
        is_plain = len(self.kv_cache_config.kv_cache_groups) == 1 and self.hash_block_size == self.block_size
        if not is_plain or not manager.prefix_cache_lookup_enabled(request):
            return self._cached_tokens(request)
        look_up = manager.block_pool.get_cached_block
        blocks = leading_blocks(request.block_hashes, lambda block: look_up(block, [0]) is not None)
        return min(blocks * int(self.block_size), int(request.num_tokens) - 1)

    def _with_entries(self, request_ids: Any) -> Iterator[tuple[Request, RequestAccount]]:
        for each in request_ids:
            request, entry = self.requests.get(each), self._accounts.entries.get(each)
            if request is not None and entry is not None:
                yield request, entry

    def _slack_s(self, request: Request, now: float) -> float:
        entry = self._accounts.entries.get(request.request_id)
        return inf if entry is None else entry.slack_s(request.num_output_tokens + request.num_output_placeholders, now)

    def _state(self) -> EngineState:
        pool = self.kv_cache_manager.block_pool
        running, waiting = self.get_request_counts()
        step_time = self._accounts.step_time
        budget = self._budget() or (None, None, None)
        return EngineState(
            dispatches=self._accounts.dispatches,
            running=running,
            waiting=waiting,
            kv_blocks=pool.num_gpu_blocks,
            kv_blocks_free=pool.get_num_free_blocks(),
            kv_block_tokens=self.block_size,
            step_tokens_max=self.max_num_scheduled_tokens,
            requests_running_max=self.max_num_active_reqs,
            scheduling_policy=self.policy.value,
            coefficients=None if step_time is None else astuple(step_time.model),
            error_ratio=None if step_time is None else step_time.error_ratio,
            is_sure=step_time is not None and step_time.is_sure,
            pab_tokens=budget[0],
            pab_ttft_s=budget[1],
            pab_tpot_s=budget[2],
        )

    def _budget(self) -> tuple[float, float, float] | None:
        now = self._accounts.now()
        decodes = [
            DueDecode(self._slack_s(each, now), each.num_computed_tokens)
            for each in self.running
            if not each.is_prefill_chunk
        ]
        begun = [each for each in self.running if each.is_prefill_chunk]
        # A prompt without a due time yields to all that have one.
        owed_tokens = sum(
            each.num_tokens - each.num_computed_tokens
            for each in (*begun, *self.waiting)
            if self._slack_s(each, now) < inf
        )
        return self._accounts.budget(decodes, owed_tokens=owed_tokens)
