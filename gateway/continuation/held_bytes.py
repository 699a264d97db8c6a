"""HeldBytes: limits the memory of the data for continuing streams: the token ids of all streams of this process.

A stream reserves the most that it can need when it begins, so tokens are not counted one by one. When the limit is
reached, the data of the oldest stream of the tenant that holds most are dropped: the stream goes on, but no other
backend can continue it. So a tenant with little keeps its part, however many streams others have.
gateway/forwarding/answers/unread_bytes.py limits whole answers.
"""

from typing import Final, Protocol

# Of all tenants together: 32 streams of the largest size (TOKEN_BYTES_MAX of stream.py), or 16,000 of 16 KiB.
BYTES_MAX: Final = 256 << 20


class HeldStream(Protocol):
    """A stream whose token ids are held in memory, so that another backend can continue it."""

    def give_up(self) -> None:
        """Drop the held token ids."""
        ...


class HeldBytes:
    """The account of the memory for the token ids of all streams, in bytes by tenant and stream. Over the limit it
    drops ids, the oldest stream of the largest tenant first: that stream cannot be continued any more. Mutable.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        """`bytes_max` is the limit for all tenants together."""
        self._bytes_max = bytes_max
        self._tenants: dict[str, dict[HeldStream, int]] = {}
        self._of_tenant: dict[str, int] = {}
        self.bytes = 0

    def hold(self, tenant_id: str, stream: HeldStream, bytes_: int) -> None:
        """Reserve `bytes_` for the stream, until `release`, or until the stream must give up, perhaps at once."""
        self._tenants.setdefault(tenant_id, {})[stream] = bytes_
        self._add(tenant_id, bytes_)
        while self.bytes > self._bytes_max:
            most = max(self._of_tenant, key=lambda each: self._of_tenant[each])
            oldest = next(iter(self._tenants[most]))
            self.release(most, oldest)
            oldest.give_up()

    def release(self, tenant_id: str, stream: HeldStream) -> None:
        """The stream has ended. Idempotent."""
        held = self._tenants.get(tenant_id, {})
        bytes_ = held.pop(stream, None)
        if bytes_ is not None:
            self._add(tenant_id, -bytes_)
            if not held:
                del self._tenants[tenant_id], self._of_tenant[tenant_id]

    def _add(self, tenant_id: str, bytes_: int) -> None:
        self.bytes += bytes_
        self._of_tenant[tenant_id] = self._of_tenant.get(tenant_id, 0) + bytes_
