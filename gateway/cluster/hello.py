"""Hello: how two processes of a cluster make sure of each other before the first frame (rule 28).

Each sends a Hello with its version, name and nonce, then a Proof: the HMAC-SHA256, keyed with the shared secret, of
both Hellos, the proving one's first. So a proof can be neither replayed on another connection nor sent back to the
side that made it.
Processes of unequal versions do not talk, and say so.
"""

import hmac
from hashlib import sha256
from typing import Final

import msgspec

from gateway.cluster.wire import VERSION

NONCE_BYTES: Final = 16
HELLO_BYTES_MAX: Final = 1024


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The speaker; `nonce` is NONCE_BYTES of chance."""

    version: int
    member: str
    nonce: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    """That the speaker knows the secret."""

    mac: bytes


class HelloError(Exception):
    """The peer is not of this cluster, or of another version; the text is for a log line."""


class OtherVersionError(HelloError):
    """The peer is of this cluster, as far as can be told, and of another version: the two share no order."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Hello | Proof]] = msgspec.msgpack.Decoder(Hello | Proof)


class Handshake:
    """One side of one connection: send `hello()`, then give every message to `received` until `peer` is set."""

    def __init__(self, secret: bytes, member: str, nonce: bytes, *, version: int = VERSION) -> None:
        """`nonce` is NONCE_BYTES of chance, other ones for each connection."""
        assert len(nonce) == NONCE_BYTES, "a nonce has its length"
        self._secret = secret
        self._own = Hello(version, member, nonce)
        self._theirs: Hello | None = None
        self.peer: str | None = None
        """The name of the other side, once it has proved itself."""

    def hello(self) -> bytes:
        """The first message of the connection, in both directions."""
        return _ENCODER.encode(self._own)

    def received(self, body: bytes) -> bytes | None:
        """Take the next message of the peer; return what to answer, None: nothing. Raises HelloError."""
        message = self._decoded(body)
        if isinstance(message, Hello):
            if self._theirs is not None or len(message.nonce) != NONCE_BYTES:
                raise HelloError("not a greeting")
            if message.version != self._own.version:
                raise OtherVersionError(
                    f"{message.member!r} speaks version {message.version} of the cluster protocol, this process "
                    f"{self._own.version}: they do not share an order"
                )
            if message.member == self._own.member or message.nonce == self._own.nonce:
                raise HelloError(f"{message.member!r} is this process itself")
            self._theirs = message
            return _ENCODER.encode(Proof(self._mac(self._own, message)))
        if self._theirs is None or not hmac.compare_digest(message.mac, self._mac(self._theirs, self._own)):
            raise HelloError("the other side does not know the cluster's secret")
        self.peer = self._theirs.member
        return None

    def _decoded(self, body: bytes) -> Hello | Proof:
        if len(body) > HELLO_BYTES_MAX:
            raise HelloError("not a greeting")
        try:
            return _DECODER.decode(body)
        except msgspec.DecodeError as error:
            raise HelloError(f"not a greeting: {error}") from error

    def _mac(self, first: Hello, second: Hello) -> bytes:
        return hmac.digest(self._secret, _ENCODER.encode((first, second)), sha256().name)
