"""A vLLM scheduler that does nothing else than write down every step: `--scheduler-cls step_log.StepLog`.

A line per step in the file STEP_LOG names: when it began (CLOCK_MONOTONIC, which all processes share), how long its
cycle took, tokens computed, KV tokens read, requests. A cycle lasts until the next step begins; the last before a
pause, until its outcome is there. With STEP_TIMES every step takes so many times as long: another engine.
"""

import os
import time
from pathlib import Path

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

LINES_KEPT = 200


class StepLog(AsyncScheduler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._lines = []
        self._begun = None
        self._path = Path(os.environ["STEP_LOG"])
        self._times = float(os.environ.get("STEP_TIMES", "1"))

    def schedule(self, *args, **kwargs):
        now = time.monotonic()
        self._close(now)
        output = super().schedule(*args, **kwargs)
        scheduled = output.num_scheduled_tokens
        if scheduled:
            context = sum(self.requests[each].num_computed_tokens for each in scheduled)
            self._begun = now, output.total_num_scheduled_tokens, context, len(scheduled)
        return output

    def update_from_output(self, *args, **kwargs):
        outputs = super().update_from_output(*args, **kwargs)
        if self._begun is not None and self._times > 1:
            time.sleep((self._times - 1) * (time.monotonic() - self._begun[0]))
        if not self.get_num_unfinished_requests():
            self._close(time.monotonic())
            self._write()
        return outputs

    def _close(self, now):
        if self._begun is None:
            return
        at, new, context, requests = self._begun
        self._begun = None
        self._lines.append(f"{at:.6f} {now - at:.6f} {new} {context} {requests}\n")
        if len(self._lines) >= LINES_KEPT:
            self._write()

    def _write(self):
        with self._path.open("a") as file:
            file.writelines(self._lines)
        self._lines.clear()
