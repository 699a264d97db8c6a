"""Models of the history in the admin API."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.models.resources import Fields
from gateway.admin.routes import Query

OF_PATTERN = r"^(pool|tier|group|tenant|backend):[^\x00-\x1f\x7f]{1,256}$"
NOTE_PATTERN = r"^[^\x00-\x1f\x7f]{1,200}$"


class HistoryAsked(Query):
    """`of`: pool:NAME, or tier, group, tenant, backend. A step is 10 s up to an hour, and a minute above."""

    of: Annotated[str, Field(pattern=OF_PATTERN)]
    range: Literal["15m", "1h", "6h", "24h"] = "1h"


class MinuteAsked(Query):
    """`at`: a time in the minute, in seconds since 1970."""

    at: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class Note(Fields):
    """A note for the history: what was deployed, or begun."""

    text: Annotated[str, Field(pattern=NOTE_PATTERN)]
