"""Budgets section: the parts of a budget at which a notice is sent, and the webhook that receives it."""

import base64
import binascii
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from backends.address_allowlist import ANY, AddressAllowlist, literal
from gateway.config.sections import Section, secret_lines
from gateway.config.value_types import not_bool

SECRET_PREFIX = "whsec_"  # noqa: S105 - of the Standard Webhooks specification, before a secret in base64
THRESHOLDS_MAX = 16
PERCENT_MAX = 1_000  # a budget may be exceeded by the calls that run

ANYWHERE = AddressAllowlist(ANY)
"""All addresses but those of metadata services and the like (address_allowlist.NEVER)."""
Percent = Annotated[int, Field(ge=1, le=PERCENT_MAX), BeforeValidator(not_bool)]


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.fragment:
        raise ValueError("must be like https://host/path, without credentials")
    address = literal(parts.hostname)
    if address is not None and not ANYWHERE.allows(address):
        raise ValueError("is at an address where nothing may be told: link-local, multicast or 0.0.0.0")
    return value


class WebhookSection(Section):
    """The webhook that receives notices about budgets. `secret_file` has the secrets that sign requests, one a line.
    All of them sign each request, so that a receiver can change to a new secret at any time.
    """

    url: Annotated[str, Field(json_schema_extra={"pattern": "^https?://"}), AfterValidator(_url)]
    secret_file: Path
    ca_file: Path | None = None

    def secrets(self) -> list[bytes]:
        """The secrets that requests are signed with. Raises ValueError where the file has no usable secret."""
        return secret_lines(self.secret_file, read=_secret)


class BudgetsSection(Section):
    """The settings of notices about budgets. `thresholds` are percents of a budget. When its use reaches one, a notice
    is sent, once per period of the budget.
    """

    thresholds: Annotated[tuple[Percent, ...], Field(max_length=THRESHOLDS_MAX)] = (50, 80, 100)
    webhook: WebhookSection | None = None

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise ValueError("thresholds must rise")
        return self


def _secret(line: str) -> bytes:
    if not line.startswith(SECRET_PREFIX):
        return line.encode()
    try:
        return base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"what follows {SECRET_PREFIX} must be base64") from None
