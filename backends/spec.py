"""Backend specification: the configuration of one backend, with its URL, credentials and known sizes."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.address_allowlist import AddressAllowlist
from policies.step_time import StepTime


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """The configuration of one backend. `url` has no trailing slash and no /v1; `headers` carry the credentials.

    `kind` is a name in BACKEND_KINDS; None: detected. `reads_priority`: the backend orders its own queue by the
    priority of each call (vLLM's `--scheduling-policy priority`); None: as its plugin reports, False without a plugin.
    `tls` has the CAs that verify an https backend; None: the system's. `address_allowlist` limits its addresses; None:
    any. `revision` is the version of its model, for a model whose `root` in /v1/models does not show it.

    `step_time` is the step-time model until steps are observed. `step_tokens_max` is the most tokens that one step
    computes (--max-num-batched-tokens), `prompt_step_tokens_max` the most of one prompt
    (--long-prefill-token-threshold).
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
