"""Target: how commands find the admin port and a key to it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from gateway.admin.access.local_socket import ASK_KEY, ASK_LINK, ask_local, local_ports
from gateway.admin.command.client import AdminClient, UnreachableError, reason_of_os

ONCE: Final = "once="  # begins the fragment of a one-time link
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
OPENED: Final = "a new one is printed by: fairlead admin link, on the gateway's machine"


def _has_no_links() -> str:
    raise UnreachableError(
        "links are printed for a gateway without a configuration, to the user that started it, on its machine; "
        "the page of any other is opened with a key (admin.key_file)"
    )


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """An admin port to connect to: its URL, with functions that get its key and make a link to its page. Both may raise
    UnreachableError. `key` is called for every client, because the key may change while a command runs. `make_link`
    returns the page's address with a new one-time link.
    """

    url: str
    key: Callable[[], str]
    make_link: Callable[[], str] = _has_no_links

    def connect(self) -> AdminClient:
        """A client with the present key. Raises UnreachableError where there is no key."""
        return AdminClient(self.url, self.key())


def find_admin(config: Path | None, *, url: str | None, key_file: Path | None) -> AdminTarget:
    """The target of --url and --key-file, or of a one-time link in place of both.

    A missing value comes from the configuration, or from a gateway on this machine that this user tries out. If both
    options are given, no configuration is read, so that it costs no time and its errors do not matter. Raises
    UnreachableError for a configuration with errors, and where it is not clear which gateway is meant.
    """
    if url is not None and urlsplit(url).fragment.startswith(ONCE):
        return _by_link(url)
    if url is not None and key_file is not None:
        return AdminTarget(url, partial(_read_key, key_file))
    from gateway.config import ConfigError, load_config  # noqa: PLC0415

    try:
        admin = load_config(config, check_files=False).admin
    except ConfigError as error:
        raise UnreachableError(str(error)) from error
    host = f"[{admin.host}]" if ":" in admin.host else admin.host
    found = url or f"http://{host}:{admin.port}"
    # A gateway with a configuration has no socket: one of that port is of a gateway in another network namespace.
    is_configured = url is None and config is not None and admin.key_file.exists()
    if key_file is None and not is_configured:
        local = _local_port(found, searches=url is None and not admin.key_file.exists())
        if local is not None:
            return AdminTarget(
                f"http://127.0.0.1:{local}", partial(_told, local, ASK_KEY), partial(_told, local, ASK_LINK)
            )
    return AdminTarget(found, partial(_read_key, key_file or admin.key_file))


def _by_link(link: str) -> AdminTarget:
    """The target of a one-time link. The first client opens the link; later ones use the key that it gave."""
    url, _, fragment = link.partition("#")
    base = url.rstrip("/")

    @cache
    def key() -> str:
        reply = AdminClient(base, None).ask("POST", "/sign-in", {"once": unquote(fragment.removeprefix(ONCE))})
        if reply.status != HTTPStatus.OK:
            raise UnreachableError(f"{reply.body.get('detail', reply.status)}; {OPENED}")
        return str(reply.body["key"])

    return AdminTarget(base, key)


def _local_port(url: str, *, searches: bool) -> int | None:
    """The admin port of a gateway that this user tries out: the one at this URL or, with `searches`, the only one.
    Raises UnreachableError where there are several.
    """
    try:
        parts = urlsplit(url)
        at = parts.port if parts.hostname in LOOPBACK else None
    except ValueError:  # no port number: the client says what is wrong with the URL
        return None
    answering = [port for port in local_ports() if (searches or port == at) and ask_local(port, ASK_KEY) is not None]
    if len(answering) > 1:
        urls = " or ".join(f"--url http://127.0.0.1:{port}" for port in answering)
        raise UnreachableError(f"several gateways are tried out on this machine; choose one: {urls}")
    return answering[0] if answering else None


def _told(port: int, question: str) -> str:
    told = ask_local(port, question)
    if told is None:
        raise UnreachableError(f"the gateway at port {port} of this machine does not answer")
    return told[1]


def _read_key(key_file: Path) -> str:
    try:
        return key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UnreachableError(f"the key cannot be read from {key_file}: {reason_of_os(error)}") from error
