"""figure: a test says what it measured; the run writes all figures and outcomes into build/calm/figures.json.

Figures travel as properties of test reports, so they also arrive from forked workers.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.calm.table import FIGURES, ROOT

PROPERTY = "calm figure"

Figure = Callable[..., None]


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Record a figure of a check: `figure(5, "Jain index", 0.991, target=">= 0.98")`. It is printed, too."""

    def record(number: int, name: str, value: float, unit: str = "", *, target: str = "") -> None:
        record_property(PROPERTY, {"number": number, "name": name, "value": value, "unit": unit, "target": target})
        print(f"check {number}: {name} {value:.4g} {unit} (target: {target})")

    return record


class Recorder:
    """A pytest plugin of the controlling process: merges what this run tells into the file of figures."""

    def __init__(self) -> None:
        self._outcomes: dict[str, str] = {}
        self._figures: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid] = report.outcome
        if report.when == "teardown":
            self._figures += [
                {**value, "test": report.nodeid}
                for name, value in report.user_properties
                if name == PROPERTY and isinstance(value, dict)
            ]

    def pytest_sessionfinish(self) -> None:
        kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"outcomes": {}, "figures": []}
        kept["outcomes"].update(self._outcomes)
        again = set(self._outcomes)
        kept["figures"] = [each for each in kept["figures"] if each["test"] not in again] + self._figures
        kept |= {"day": time.strftime("%Y-%m-%d"), "commit": _commit(), "machine": _machine()}
        FIGURES.parent.mkdir(parents=True, exist_ok=True)
        FIGURES.write_text(json.dumps(kept, indent=1))


def _commit() -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unknown"


def _machine() -> str:
    return f"{len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.machine()}"
