"""Hello: the first message of each side of a connection between two processes of an order: its version and its name.

Another check has already shown that the other side belongs to this cluster: its certificate
(gateway/shared_order/credentials.py), or the folder of its Unix socket, which is private to one user. Processes of
unequal versions do not join each other; a store lists their versions (election.py).
"""

from typing import Final

import msgspec

HELLO_BYTES_MAX: Final = 1024


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message that each process sends on a connection to another one: the version of its protocol, its name,
    and whether it `leads`.
    """

    version: int
    member: str
    leads: bool = True

    def encode(self) -> bytes:
        """The bytes of this message; both sides send it first."""
        return _ENCODER.encode(self)

    def met(self, body: bytes) -> "Hello":
        """The other side's Hello, read from its first message. Raises HelloError."""
        if len(body) > HELLO_BYTES_MAX:
            raise HelloError("not a greeting")
        try:
            other = _DECODER.decode(body)
        except msgspec.DecodeError as error:
            raise HelloError(f"not a greeting: {error}") from error
        if other.version != self.version:
            raise HelloError(
                f"{other.member!r} speaks version {other.version} of the cluster protocol, this process "
                f"{self.version}: they do not share an order"
            )
        if other.member == self.member:
            raise HelloError(f"{other.member!r} is this process itself")
        return other


class HelloError(Exception):
    """An error: a peer's first message is invalid, or its version or name is not expected; the text is for the log."""


class OtherMemberError(HelloError):
    """An error: another process of the cluster answers at the expected one's address, so the expected one has ended."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Hello)
