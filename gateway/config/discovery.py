"""Discovery section: sources of backends that come and go by themselves."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from gateway.config.reasons import reason_of
from gateway.config.sections import BackendSection, Section
from gateway.config.value_types import LABEL_PATTERN, PORT_NAME_PATTERN, not_bool

SOURCES_MAX = 16
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}\.?)+")
_ANYWHERE = "http://found"


def _host(value: str) -> str:
    if len(value) > 253 or not _HOST.fullmatch(value):
        raise ValueError("must be a host name")
    return value


PortNumber = Annotated[int, BeforeValidator(not_bool), Field(ge=1, le=65_535)]
PortName = Annotated[str, Field(pattern=PORT_NAME_PATTERN)]


class Discovery(Section):
    """The settings of one source from which backends are discovered: the servers behind a host name (`dns`), or behind
    the Kubernetes services whose EndpointSlices match a label selector (`kubernetes`; `namespace` None: the gateway's
    own). Each server becomes a backend with the settings in `backend`.
    """

    dns: Annotated[str, AfterValidator(_host)] | None = None
    kubernetes: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    namespace: Annotated[str, Field(pattern=LABEL_PATTERN)] | None = None
    port: PortNumber | PortName = 8000
    scheme: Literal["http", "https"] = "http"
    backend: Mapping[str, Any] = {}

    @field_validator("backend")
    @classmethod
    def _is_a_backends(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        named = [name for name in ("url", "name") if name in settings]
        if named:
            raise ValueError(f"cannot have a {named[0]}: that is found")
        try:
            BackendSection(url=_ANYWHERE, **settings)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, wrong['loc']))}: {reason_of(wrong)}") from None
        return settings

    @model_validator(mode="after")
    def _looks_in_one_place(self) -> Self:
        if (self.dns is None) == (self.kubernetes is None):
            raise ValueError("set one of dns and kubernetes")
        if self.dns is not None and (self.namespace is not None or isinstance(self.port, str)):
            raise ValueError("a namespace and the name of a port are for kubernetes")
        return self

    def backend_at(self, url: str) -> BackendSection:
        return BackendSection(url=url, **self.backend)
