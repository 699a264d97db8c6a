"""`make demo-continue` fails with a sentence where an engine does not start."""

import subprocess
import sys

from tests.calm.table import ROOT

DEMO = ROOT / "tests/benchmarks/demos/continuing.py"
# With vLLM installed nowhere, and with the command line that the Makefile has.
WITHOUT_VLLM = f"""
import runpy, sys
from pathlib import Path
sys.path[:0] = [{str(DEMO.parent)!r}, {str(ROOT / "tests/vllm")!r}]
import processes, streams
processes.INSTALLED = Path("nowhere")
sys.argv = ["continuing.py", "--scenes", "kill"]
runpy.run_path({str(DEMO)!r}, run_name="__main__")
"""


def test_an_engine_that_does_not_start_is_told_in_a_sentence():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_VLLM], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("vllm-0 did not start: it ended with exit code 127. Its last line: ")
    assert "nowhere/venv/bin/vllm" in first
    assert second.startswith("Its log is ")
