"""`make bench-check` notices what it is for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / "benchmarks" / "relay" / "check.py"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("taskset") is None, reason="its lab needs both")
def test_a_gateway_that_takes_30_percent_more_cpu_is_noticed():
    """It is 15 % above the recorded ratio in each of three tries, which noise alone is not."""
    done = subprocess.run([sys.executable, CHECK, "--slowed", "0.3"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DEARER chunk" in done.stdout or "DEARER answer" in done.stdout
