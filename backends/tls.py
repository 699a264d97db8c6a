"""TLS: the CAs by which the gateway trusts backends, its client certificate for them, and its ports' certificates.

The TLS context for a backend is made once. Its client certificate is read again when its files have changed, before the
next connection: a renewal needs no restart, and open connections continue. While certificate and key do not match, the
last matching pair stays in use.
"""

import logging
import ssl
from pathlib import Path
from typing import Any

Marks = tuple[tuple[int, int, int] | None, ...]

log = logging.getLogger(__name__)


def tls_context(ca_file: Path | None, cert_file: Path | None = None, key_file: Path | None = None) -> ssl.SSLContext:
    """Return a TLS context that trusts only the CAs in `ca_file` (PEM; None: the system's). It shows the certificate
    and intermediates of `cert_file` (None: no certificate). Raises ValueError for unreadable or unmatched files.
    """
    try:
        trusting = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the file {ca_file} is not one of CA certificates: {error}") from error
    if cert_file is None or key_file is None:
        return trusting
    context = ReloadingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(ca_file)
    context.read(cert_file, key_file)
    return context


def tls_context_of(ca_pem: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only the CAs in this PEM text. Raises ValueError if it has none."""
    wrong = ValueError("is not a text of CA certificates (PEM)")
    if not ca_pem.isascii() or not ca_pem:  # without any, Python trusts the system's CAs
        raise wrong
    try:
        return ssl.create_default_context(cadata=ca_pem)
    except (ValueError, ssl.SSLError):
        raise wrong from None


class ReloadingContext(ssl.SSLContext):
    """A TLS context for connections to a backend. It reads its client certificate again after the files were renewed.
    Call `read` once at the start.
    """

    _files: tuple[Path, Path]
    _seen: Marks

    def read(self, cert_file: Path, key_file: Path) -> None:
        """Read certificate and key. If they cannot be read or do not match, raises ValueError and changes nothing."""
        self._files = cert_file, key_file
        self._seen = file_marks(cert_file, key_file)
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert_file, key_file)  # a failure would leave half
        load_certificate(self, cert_file, key_file)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Start a connection, in either event loop; first read the certificate if it was renewed."""
        if file_marks(*self._files) != self._seen:
            try:
                self.read(*self._files)
            except ValueError as error:
                log.warning("the last certificate for backends stays: %s", error)
            else:
                log.info("the certificate in %s is shown to backends", self._files[0])
        return super().wrap_bio(*arguments, **options)


def server_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """Return the TLS context (1.2 or 1.3) of a port, with this certificate. The port asks clients for no certificate.
    Raises ValueError if the files cannot be read or do not match.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, cert_file, key_file)
    return context


def load_certificate(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Load the certificate that the context shows. Raises ValueError as `server_context` does."""
    for file in (cert_file, key_file):
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
    try:
        # Without this callback OpenSSL would ask for a password at the terminal.
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ValueError(f"{cert_file} and {key_file} are no certificate and its key: {error}") from error


def file_marks(*files: Path) -> Marks:
    """The identity of each file (inode, size, time), which changes when it is modified or replaced; None: no file."""
    return tuple(map(_mark, files))


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _no_password() -> str:
    raise ValueError("the key must have no password")
