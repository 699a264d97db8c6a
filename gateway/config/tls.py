"""TLS context of a port, with its certificate. Client certificates are not requested."""

import ssl

from gateway.config.sections import ServerTls


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """TLS 1.2 or 1.3 with this certificate. Raises ValueError where its files cannot be read or do not match."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for file in (tls.cert_file, tls.key_file):
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
    try:
        # Without this callback OpenSSL would ask for a password at the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ValueError(f"{tls.cert_file} and {tls.key_file} are no certificate and its key: {error}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key must have no password")
