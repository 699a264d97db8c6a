"""What is configured of one backend: where it is, how to sign in, and what need not be found out."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.address_allowlist import AddressAllowlist
from policies.step_time import StepTime


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One configured backend. `url` has no trailing slash and no /v1; `headers` carry its credentials.

    One that `reads_priority` orders its own queue by the priority of each call (vLLM's `--scheduling-policy priority`);
    None: as its plugin says, and without one it does not.
    `kind` is a name in KINDS, None: it is found out. `tls` says whom an https backend is believed to be signed by,
    None: whomever the system trusts. `step_time` is what is believed of its steps before any is seen, and
    `step_tokens_max` the most tokens that one computes (--max-num-batched-tokens), `prompt_step_tokens_max` of one
    prompt (--long-prefill-token-threshold). `address_allowlist` says at which addresses it may be, None: at any.
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
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    address_allowlist: AddressAllowlist | None = None
