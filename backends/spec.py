"""Backend specification: the configuration of one backend, with its URL, credentials and known sizes."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.address_allowlist import AddressAllowlist
from policies.step_time import StepTime


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """The configuration of one backend. `url` has no trailing slash and no /v1; `headers` carry its credentials.

    `reads_priority`: the backend orders its own queue by the priority of each call (vLLM's `--scheduling-policy
    priority`); None: as its plugin reports, False without a plugin. `kind` is a name in BACKEND_KINDS; None: detected.
    `tls` holds the CAs that an https backend is verified by; None: the system's. `step_time` is the estimate before any
    step is observed. `step_tokens_max` is the most tokens that one step computes (--max-num-batched-tokens),
    `prompt_step_tokens_max` the most tokens of one prompt in a step (--long-prefill-token-threshold).
    `address_allowlist` limits its addresses; None: any. `revision`: the version of the model that it serves, where the
    root of the model does not show it.
    """

    id: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    pool: str | None = None
    requests_running_max: int | None = None
    kv_tokens_max: int | None = None
    kind: str | None = None
    reads_priority: bool | None = None
    step_time: StepTime | None = None
    step_tokens_max: int | None = None
    prompt_step_tokens_max: int | None = None
    revision: str | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    address_allowlist: AddressAllowlist | None = None
