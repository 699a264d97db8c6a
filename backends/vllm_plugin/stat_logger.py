"""Stat logger: the receiver of the scheduler's reports in vLLM's API process.

vLLM sends the scheduler's statistics to the API process after every step, in a structure that drops unknown attributes
and decodes those of connectors. One mapping of strings in it, of waiting LoRA adapters, reaches the loggers unchanged.
This logger runs before vLLM's own and takes out the strings that are not adapters.
"""

from typing import Any
from uuid import uuid4

from vllm.v1.metrics.loggers import StatLoggerBase

from backends.vllm_plugin.reports import Reports, take_carried

REPORTS = Reports(uuid4().hex)
"""The reports of this process; the endpoint serves them."""


class StepReportLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM is not there where types are checked
    """The receiver of one engine's step reports in vLLM's API process, as a plugin (vllm.stat_logger_plugins)."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._engine = engine_index

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            for report in take_carried(scheduler_stats.waiting_lora_adapters):
                REPORTS.add(self._engine, report)

    def log_engine_initialized(self) -> None:
        return
