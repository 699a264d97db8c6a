"""TLS context of a port, with its certificate. Client certificates are not requested."""

import ssl

from backends.tls import load_certificate
from gateway.config.sections import ServerTls


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """A TLS context (1.2 or 1.3) with this certificate. Raises ValueError where its files cannot be read or do not
    match.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, tls.cert_file, tls.key_file)
    return context
