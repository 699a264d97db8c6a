"""Options of the plugin, set by environment variables, because vLLM's command line accepts no options of plugins.

The options are read once in each process. An invalid value fails at the start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

ORDERS: Final = ("slack", "vtc", "dlpm")
_YES: Final = {"1": True, "true": True, "0": False, "false": False, "": False}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of fairlead-vllm, the plugin for vLLM. `order` names the order of the engine's waiting queue
    (queue_order.py). `ttft_s` and `tpot_s` are the targets, in seconds, of requests that state none; None: no target.
    `collects`: the plugin runs the garbage collection. Reports are served to callers that present `token`. Without a
    token, reports are served to every caller if `is_open`, otherwise to none.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    order: str = "slack"
    collects: bool = True
    token: str | None = None
    is_open: bool = False


def read_options(environment: Mapping[str, str]) -> Options:
    """Read the options. Raises ValueError for an invalid value, naming the variable."""
    order = environment.get("FAIRLEAD_ORDER", "slack")
    if order not in ORDERS:
        raise ValueError(f"FAIRLEAD_ORDER is one of {', '.join(ORDERS)}, not {order!r}")
    return Options(
        ttft_s=_seconds(environment, "FAIRLEAD_TTFT_MS"),
        tpot_s=_seconds(environment, "FAIRLEAD_TPOT_MS"),
        order=order,
        collects=_switch(environment, "FAIRLEAD_GC", "1"),
        # vLLM's own API key works too: a gateway sends one Authorization to all paths.
        token=environment.get("FAIRLEAD_TOKEN") or environment.get("VLLM_API_KEY") or None,
        is_open=_switch(environment, "FAIRLEAD_OPEN", "0"),
    )


def _seconds(environment: Mapping[str, str], name: str) -> float | None:
    given = environment.get(name, "")
    if not given:
        return None
    try:
        milliseconds = float(given)
    except ValueError:
        milliseconds = -1.0
    if not isfinite(milliseconds) or milliseconds <= 0.0:
        raise ValueError(f"{name} is a number of milliseconds above zero, not {given!r}")
    return milliseconds / 1000


def _switch(environment: Mapping[str, str], name: str, default: str) -> bool:
    given = environment.get(name, default).lower()
    if given not in _YES:
        raise ValueError(f"{name} is 0 or 1, not {given!r}")
    return _YES[given]
