"""fairlead-vllm for a vLLM that a test or a demonstration starts: built, and installed beside its environment."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCHEDULER = ("--scheduler-cls", "fairlead_vllm.scheduler.FairScheduler")


def install(python: Path, directory: Path) -> Path:
    """Build the wheel with vLLM's Python and install it in a new directory, which is returned."""
    site = directory / "site"
    pip = [os.fspath(python), "-m", "pip", "-q", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    source = ROOT / "backends" / "vllm_plugin"
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", directory, source], check=True)
    (wheel,) = directory.glob("fairlead_vllm-*.whl")
    subprocess.run([*pip, "install", *offline, "--target", site, wheel], check=True)
    return site


def environment(site: Path, **settings: str) -> Mapping[str, str]:
    """What vLLM is started with to find the plugin; `settings` are those of docs/plugin.md."""
    return {"PYTHONPATH": os.fspath(site), "VLLM_PLUGINS": "fairlead", **settings}
