"""Credentials: mutual TLS between the processes of one order, whose authority is the secret that they share.

The key of a CA is derived from the secret, so every process that knows the secret has the same CA and no other process
has it. Each process issues a certificate with its own name to itself, for a key that never leaves its memory, and
accepts peers with a certificate of the same CA. So TLS alone authenticates the other end. While a secret is replaced,
the CAs of several secrets are accepted; the first of them issues.

Certificates of the operator's own CA can be used instead. They name a service rather than a process, so a peer belongs
to the cluster if its certificate has one of the names in this process's certificate; a signature of the CA is not
enough. Names of the machine itself, such as localhost, do not count: certificates of any service have them.
"""

import os
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from backends.tls import server_context
from gateway.config.cluster import ClusterTls

LABEL: Final = b"fairlead: Ed25519 key of the CA of a cluster"
KEY_BYTES: Final = 32  # of Ed25519
MARK_CHARS: Final = 16  # of a CA in its name, so that two are never taken for each other
# The secret says how long a certificate counts, and clocks of machines differ: all of time (RFC 5280, 4.1.2.5).
ALWAYS: Final = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))

Names = frozenset[x509.GeneralName]


class Credentials:
    """The TLS certificates of one process that shares an order of requests with others: those that it shows to other
    processes, and those that it accepts from them.
    """

    def __init__(self, accepting: ssl.SSLContext, connecting: ssl.SSLContext, names: Names | None = None) -> None:
        """`accepting` and `connecting` are for the two ends of a connection. A peer's certificate has one of these
        `names`; None: the peer's own name.
        """
        self.accepting = accepting
        self.connecting = connecting
        self._names = names

    def are_of(self, member: str, connection: ssl.SSLObject | None) -> bool:
        """Whether the certificate of the peer at the other end of this connection belongs to the member."""
        shown = None if connection is None else connection.getpeercert(binary_form=True)
        names = frozenset() if shown is None else _names(x509.load_der_x509_certificate(shown))
        return not names.isdisjoint({_name(member)} if self._names is None else self._names)


def derived_credentials(secrets: Sequence[bytes], member: str) -> Credentials:
    """Credentials for processes that share one of these secrets; the CA of the first secret issues the certificate."""
    authorities = [_Authority(secret) for secret in secrets]
    key = Ed25519PrivateKey.generate()
    issued = _pem(key) + authorities[0].issue(key, member).public_bytes(Encoding.PEM)
    trusted = "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in authorities)
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in contexts:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # members are known by name, wherever they listen
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=trusted)
        _load(context, issued)
    contexts[0].num_tickets = 0  # a connection lives long: none is resumed
    return Credentials(*contexts)


def given_credentials(tls: ClusterTls) -> Credentials:
    """Credentials of the operator's own CA. Raises ValueError for unreadable files, or a certificate without names."""
    accepting, connecting = server_context(tls.cert_file, tls.key_file), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    connecting.check_hostname = False  # replicas are known by address, and their certificates by name
    connecting.load_cert_chain(tls.cert_file, tls.key_file)
    for context in (accepting, connecting):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(tls.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"the file {tls.ca_file} is not one of CA certificates: {error}") from error
    named = _names(x509.load_pem_x509_certificate(Path(tls.cert_file).read_bytes()))
    names = frozenset(name for name in named if not _is_of_any_machine(name))
    if not names:
        raise ValueError(
            f"the certificate {tls.cert_file} has no subjectAltName, by which replicas know each other; localhost "
            "and loopback addresses do not count"
        )
    return Credentials(accepting, connecting, names)


class _Authority:
    """The CA that everybody who knows this secret can make: the same key, name and certificate each time."""

    def __init__(self, secret: bytes) -> None:
        derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=LABEL).derive(secret)
        self._key = Ed25519PrivateKey.from_private_bytes(derived)
        mark = Hash(SHA256())
        mark.update(self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        common_name = f"fairlead cluster {mark.finalize().hex()[:MARK_CHARS]}"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        self.certificate = (
            self._builder(self._key, self._name, serial=1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, None)
        )

    def issue(self, key: Ed25519PrivateKey, member: str) -> x509.Certificate:
        """A certificate of this key with the name of this member, for both ends of a connection."""
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        return (
            self._builder(key, x509.Name([]), serial=x509.random_serial_number())
            .add_extension(x509.SubjectAlternativeName([_name(member)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(both, critical=False)
            .sign(self._key, None)
        )

    def _builder(self, key: Ed25519PrivateKey, subject: x509.Name, *, serial: int) -> x509.CertificateBuilder:
        own = self._key.public_key()
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key(), serial, *ALWAYS)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
        )


def _name(member: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(f"fairlead:{quote(member, safe='')}")


def _names(certificate: x509.Certificate) -> Names:
    try:
        return frozenset(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return frozenset()


def _is_of_any_machine(name: x509.GeneralName) -> bool:
    if isinstance(name, x509.IPAddress):
        return bool(name.value.is_loopback)
    return isinstance(name, x509.DNSName) and name.value.lower().rstrip(".").rpartition(".")[2] == "localhost"


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Have the context show this key and certificate. `ssl` reads them from a file alone: one in memory, without a name
    in any folder, is gone when it is closed.
    """
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
