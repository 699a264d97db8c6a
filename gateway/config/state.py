"""State section: the state file, and the Redis server that gateways share."""

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator

from gateway.config.sections import Section, file_text
from gateway.config.value_types import not_bool

PREFIX_CHARS_MAX = 64
SCHEMES = ("redis", "rediss", "unix")


def _prefix(value: str) -> str:
    if not value.isascii() or not value.isprintable() or "{" in value or "}" in value:
        raise ValueError("must be printable ASCII without braces")
    return value


class RedisSection(Section):
    """The settings of one Redis server, Redis 6.2 or Valkey 7.2 or newer. `password` overrides `password_file`."""

    url: str
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    prefix: Annotated[str, Field(min_length=1, max_length=PREFIX_CHARS_MAX), AfterValidator(_prefix)] = "fairlead"
    timeout_ms: Annotated[int, BeforeValidator(not_bool), Field(ge=10, le=5_000)] = 500

    @field_validator("url")
    @classmethod
    def _is_server(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or not (parts.hostname or parts.scheme == "unix"):
            raise ValueError("must be like redis://host:6379/0, rediss:// for TLS, or unix:///path")
        if parts.password is not None or parts.query:
            raise ValueError("must not hold a password or a query (password: password_file)")
        return url

    @model_validator(mode="after")
    def _has_a_use_for_its_authority(self) -> Self:
        if self.ca_file is not None and not self.url.startswith("rediss:"):
            raise ValueError("ca_file is for rediss://")
        return self

    def secret(self) -> str | None:
        """The password. Raises ValueError where its file cannot be read."""
        if self.password is not None:
            return self.password.get_secret_value()
        return None if self.password_file is None else file_text(self.password_file)


class StateSection(Section):
    """The settings of where the gateway's state is stored. `file` None: fairlead.db beside the configuration file;
    without a configuration file, state is only in memory.
    """

    file: Path | None = None
    redis: RedisSection | None = None
